"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.support.servers import find_redis_binary

PACKAGES = ("celery", "kombu", "billiard", "redis", "hiredis")


def describe() -> str:
    """One paragraph: processor, kernel, Python, packages, server, load."""
    load = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    busy = (
        " **The machine was busy with other work: read the ratios, not the absolute figures.**"
        if load > 0.5
        else ""
    )
    packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    return (
        f"{cores} cores ({_processor()}), {platform.system()} {platform.release().split('-')[0]}, "
        f"{platform.python_implementation()} {platform.python_version()}, {packages}; server: "
        f"{_server()}, on the same machine, nothing written to disk. Load before the run: "
        f"{load:.1f}.{busy}"
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _server() -> str:
    binary = find_redis_binary()
    if binary is None:
        return "none"
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    words = said.stdout.split()
    number = next((word.removeprefix("v=") for word in words if word.startswith("v=")), "?")
    return f"{words[0] if words else binary} {number}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
