"""The demo's processes: none of them outlives it, however it ends.

Each is the leader of its own process group. A guardian, a process of its own, knows the groups
and ends them when the pipe from the demo closes, which happens even when the demo is SIGKILLed. A
process becomes what it is to be when the guardian knows it, and ends if that never comes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

Process = subprocess.Popen[bytes]

#: waits for a line, then is the command behind it
WHEN_TOLD = ("/bin/sh", "-c", 'read -r line && exec "$@" </dev/null', "sh")


class Family:
    """Starts processes and ends all of them when the ``with`` block is left."""

    def __init__(self) -> None:
        self._members: list[Process] = []
        self._guardian = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def start(
        self,
        argv: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        answers: bool = False,
    ) -> Process:
        """Start a process with its output in ``log``; ``answers=True``: its stdout is a pipe."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*WHEN_TOLD, *argv],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if answers else out,
                stderr=out,
                start_new_session=True,
            )
        self._members.append(process)
        self._tell(f"+{process.pid}")
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(b"\n")
        return process

    def kill(self, process: Process) -> None:
        """SIGKILL the process with all its children, and wait for its end."""
        kill_group(process.pid)
        process.wait(30)
        if process in self._members:
            self._members.remove(process)
            self._tell(f"-{process.pid}")
        if process.stdout is not None:
            process.stdout.close()

    def close(self) -> None:
        """End everything, the last started first."""
        for process in reversed(self._members.copy()):
            self.kill(process)
        if self._guardian.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guardian.stdin.close()
        self._guardian.wait(30)

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *exc_info: object) -> None:
        # a second Ctrl-C must not leave half of them running
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.close()
        finally:
            signal.signal(signal.SIGINT, before)

    def _tell(self, line: str) -> None:
        if self._guardian.stdin is not None:
            self._guardian.stdin.write(f"{line}\n".encode())
            self._guardian.stdin.flush()


def kill_group(leader: int) -> None:
    """SIGKILL a whole process group; nothing happens when it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def guard() -> None:
    """The guardian's life: note groups until the demo is gone, then end those that are left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leaders: set[int] = set()
    for line in sys.stdin:
        change = leaders.add if line[0] == "+" else leaders.discard
        change(int(line[1:]))
    for leader in leaders:
        kill_group(leader)


if __name__ == "__main__":
    guard()
