"""Finding processes that a test session left behind, orphans of killed parents too."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid

import psutil

#: every process that the session starts, however deep, inherits this variable
ENV = "IDEM_TEST_SESSION"


def mark_session() -> str:
    """Give this process's future children a mark; return it."""
    mark = uuid.uuid4().hex
    os.environ[ENV] = mark
    return mark


def left_behind(mark: str) -> list[str]:
    """Pid and command line of every living process that carries the mark, but this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(ENV) == mark:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def end_all(mark: str) -> list[str]:
    """SIGKILL what carries the mark until nothing does; what was found.

    In rounds, since a process that is being killed may just have started another; and each time it
    looks twice, since one that is about to become another program shows no environment meanwhile.
    """
    found: list[str] = []
    while round_ := left_behind(mark) or left_behind(mark):
        for line in round_:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        found += [line for line in round_ if line not in found]
    return found
