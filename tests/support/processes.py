"""Starting and ending child processes so that none is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.waiting import wait_until


def guarded(argv: Sequence[str]) -> list[str]:
    """The command of a process that ends with this one, whatever ends this one: on Linux the kernel
    kills it when the thread that started it ends, so start what lives long from the main thread
    only. ``setpriv`` does that without a ``preexec_fn``, which could deadlock in a process with
    threads.
    """
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    return [*([setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []), *argv]


def spawn(
    argv: Sequence[str],
    log: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``argv``, :func:`guarded`, leading a session of its own; its output is appended to
    ``log``."""
    with log.open("ab") as out:
        return subprocess.Popen(
            guarded(argv),
            cwd=cwd,
            env=dict(os.environ) if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def env_without_django() -> dict[str, str]:
    """This process's environment, for one that has another Django project or none: tests of Django
    set theirs in it."""
    return {name: it for name, it in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}


def group_members(pgid: int) -> list[int]:
    """Pids of the living processes (no zombies) in process group ``pgid``."""
    members = []
    for process in psutil.process_iter(["pid", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process.info["pid"]) == pgid:
                members.append(int(process.info["pid"]))
    return members


def signal_group(pgid: int, number: int) -> None:
    """Send a signal to every process of the group; nothing happens when there is none."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pgid, number)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the whole group of ``process``, reap it, and wait until all of it is gone."""
    if process.poll() is not None and psutil.pid_exists(process.pid):
        return  # reaped, and its number is another's: no group of ours can have it any more
    signal_group(process.pid, signal.SIGKILL)
    process.wait(30)
    wait_until(
        lambda: not group_members(process.pid), what=f"the end of process group {process.pid}"
    )


def wait_stopped(pids: Callable[[], list[int]]) -> None:
    """Wait until the kernel has really stopped all of them: a SIGSTOP is not felt at once."""

    def all_stopped() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids())
        return False

    wait_until(all_stopped, what=lambda: f"processes {pids()} to be stopped")
