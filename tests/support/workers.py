"""Real ``celery worker`` processes that tests may kill, freeze and read."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.processes import end_group, group_members, signal_group, spawn, wait_stopped
from tests.support.waiting import DeadlineMissed, wait_until

ROOT = Path(__file__).resolve().parents[2]

_numbers = itertools.count(1)

#: Settings of a worker that gives up on its result backend after a second, not after 20 tries.
IMPATIENT_RESULTS = {"result_backend_transport_options": {"retry_policy": {"timeout": 1.0}}}


class Worker:
    """``celery -A app worker`` in a session and process group of its own.

    ``app`` is what ``-A`` takes (``"tests.apps.plain:app"``); ``env`` is added to this
    process's environment, whose PYTHONPATH gets the project's root. Mingle and gossip are off
    unless ``mingle=True``: they cost a second at start-up. ``pool="threads"``, ``"solo"``,
    ``"gevent"``, ``"eventlet"`` work as well. On Linux the worker's main process is killed
    when the test process dies.
    """

    def __init__(
        self,
        app: str,
        directory: Path,
        *,
        queues: Sequence[str] = (),
        pool: str = "prefork",
        concurrency: int = 1,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        hostname: str | None = None,
        extra: Sequence[str] = (),
        loglevel: str = "INFO",
        mingle: bool = False,
        python: str = sys.executable,
    ) -> None:
        number = next(_numbers)
        self.hostname = hostname or f"w{number}-{os.getpid()}@test"
        self.directory = directory
        self.cwd = cwd or ROOT
        self.log = directory / f"worker-{number}.log"
        self.env = dict(os.environ) | dict(env or {})
        self.env["PYTHONPATH"] = os.pathsep.join(
            part for part in (str(ROOT), self.env.get("PYTHONPATH")) if part
        )
        # a killed pool can't tidy up its temporary folders; there, pytest does
        self.env["TMPDIR"] = str(directory)
        self.argv = [python, "-m", "celery", "-A", app, "worker", "-P", pool]
        self.argv += ["-c", str(concurrency), "-n", self.hostname, "-l", loglevel]
        self.argv += [] if mingle else ["--without-mingle", "--without-gossip"]
        self.argv += ["-Q", ",".join(queues)] if queues else []
        self.argv += extra
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    # -- start and end

    def start(self) -> Worker:
        """Start it, without waiting; again after its end (the log goes on)."""
        if self._process is not None and self._process.poll() is None:
            raise RuntimeError(f"{self.hostname} is running")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = spawn(self.argv, self.log, cwd=self.cwd, env=self.env)
        return self

    def wait_ready(self, deadline_s: float = 60.0) -> Worker:
        """Wait for "ready." in the log (log level INFO); error at once if the worker ended."""
        ready = re.compile(r"\bready\.")

        def look() -> bool:
            if ready.search(self.log_text()):
                return True
            if self.returncode is not None:
                raise AssertionError(f"worker ended with {self.returncode}:\n{self.log_text()}")
            return False

        wait_until(look, deadline_s, lambda: f"a ready worker:\n{self.log_text()[-4000:]}")
        return self

    def term(self) -> None:
        """SIGTERM to the main process: warm shutdown."""
        self.signal_parent(signal.SIGTERM)

    def quit(self) -> None:
        """SIGQUIT to the main process: cold shutdown."""
        self.signal_parent(signal.SIGQUIT)

    def wait_exit(self, deadline_s: float = 60.0) -> int:
        """Wait for the main process's end; its return code (negative: the signal)."""
        try:
            return self._running().wait(deadline_s)
        except subprocess.TimeoutExpired:
            tail = self.log_text()[-4000:]
            raise DeadlineMissed(f"worker still there after {deadline_s:g} s:\n{tail}") from None

    def close(self) -> None:
        """Kill what is left of the group, whatever its state. May be called often."""
        if self._process is not None:
            end_group(self._process)

    def __enter__(self) -> Worker:
        return self if self._process is not None else self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- who it is

    @property
    def pid(self) -> int:
        """Pid of the main process (prefork: the parent)."""
        return self._running().pid

    @property
    def returncode(self) -> int | None:
        return self._running().poll()

    def children(self) -> list[int]:
        """Pids of the living pool processes (prefork), oldest first; none without a parent."""
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.pid).children()
            living = [p for p in found if p.status() != psutil.STATUS_ZOMBIE]
            return [p.pid for p in sorted(living, key=lambda p: (p.create_time(), p.pid))]
        return []

    def members(self) -> list[int]:
        """Pids of all living processes of the group, orphans of a killed parent too."""
        return group_members(self.pid)

    # -- faults

    def kill_tree(self) -> None:
        """SIGKILL parent and children at once; returns when all are gone."""
        end_group(self._running())

    def kill_parent(self) -> None:
        """SIGKILL the main process only; returns when it is gone. Children may live on."""
        self.signal_parent(signal.SIGKILL)
        self._running().wait(30)

    def kill_child(self, pid: int | None = None) -> int:
        """SIGKILL one pool process (default: the oldest) and return its pid."""
        victim = self.children()[0] if pid is None else pid
        os.kill(victim, signal.SIGKILL)
        return victim

    def stop_tree(self) -> None:
        """SIGSTOP the whole group, as a paused machine; returns when all have stopped."""
        signal_group(self.pid, signal.SIGSTOP)
        wait_stopped(self.members)

    def cont_tree(self) -> None:
        """SIGCONT the whole group."""
        signal_group(self.pid, signal.SIGCONT)

    def stop_parent(self) -> None:
        """SIGSTOP the main process only (its children go on); returns when it has stopped."""
        self.signal_parent(signal.SIGSTOP)
        wait_stopped(lambda: [self.pid])

    def cont_parent(self) -> None:
        self.signal_parent(signal.SIGCONT)

    def signal_parent(self, number: int) -> None:
        self._running().send_signal(number)

    # -- what it says

    def log_text(self, *, whole: bool = False) -> str:
        """The log since the last ``start``; ``whole=True``: of all starts."""
        if not self.log.exists():
            return ""
        data = self.log.read_bytes()
        return (data if whole else data[self._log_start :]).decode(errors="replace")

    def wait_log(self, pattern: str, deadline_s: float = 30.0) -> re.Match[str]:
        """Wait for a regular expression in the log since the last start; return the match."""
        regex = re.compile(pattern)
        return wait_until(
            lambda: regex.search(self.log_text()),
            deadline_s,
            lambda: f"{pattern!r} in the log:\n{self.log_text()[-4000:]}\n{self.where()}",
        )

    def where(self) -> str:
        """What the main process does now, as it says when asked (Celery's own SIGUSR1), or how it
        ended. For errors: a worker that says nothing may be stuck, frozen or gone."""
        if self.returncode is not None:
            return f"the worker ended with {self.returncode}"
        before = len(self.log_text())
        self.signal_parent(signal.SIGUSR1)
        with contextlib.suppress(DeadlineMissed):
            wait_until(lambda: "=====" in self.log_text()[before:], 5)
        status = psutil.Process(self.pid).status()
        return f"the worker is {status}:\n{self.log_text()[before:][-6000:]}"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the worker was not started")
        return self._process
