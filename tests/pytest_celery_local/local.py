"""pytest-celery's "containers" as plain local processes: no Docker engine is asked.

``LocalProcess`` is what the Docker SDK's container object is to pytest-docker-tools and
pytest-celery, as far as they look at it. The classes below it are pytest-celery's own, with
the parts replaced that read port maps, networks and volumes.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_celery import CeleryTestWorker, CeleryWorkerContainer, RedisContainer

from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import end_group, spawn
from tests.support.servers import find_redis_binary
from tests.support.waiting import wait_until
from tests.support.workers import ROOT


class LocalProcess:
    """One process (with its group) that answers to the names of a Docker container."""

    def __init__(
        self, argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.argv = list(argv)
        self.folder = folder
        self.env = os.environ | dict(env or {})
        self.id = uuid.uuid4().hex[:12]
        self.name = f"{folder.name}-{self.id}"
        self._starts = 0
        self.attrs = {
            "Config": {"Hostname": LOOPBACK, "Env": [f"{k}={v}" for k, v in self.env.items()]},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
            "HostConfig": {"PortBindings": {}},
        }
        self._start()

    @property
    def log(self) -> Path:
        """A file for each start, else the last life's "ready." would count for this one."""
        return self.folder / f"log-{self._starts}"

    @property
    def status(self) -> str:
        return "running" if self.process.poll() is None else "exited"

    def reload(self) -> None:
        """Docker's objects are snapshots; this one is always fresh."""

    def logs(self, **_options: Any) -> bytes:
        return self.log.read_bytes()

    def kill(self, signal_name: str | int | None = "SIGKILL") -> None:
        """As ``docker kill``: SIGKILL takes all processes, another signal goes to the first."""
        number = getattr(signal, signal_name) if isinstance(signal_name, str) else signal_name
        if number in (None, signal.SIGKILL):
            end_group(self.process)
        else:
            self.process.send_signal(number)

    def stop(self, timeout: float = 10) -> None:
        """SIGTERM, then SIGKILL for what is still there after ``timeout`` seconds."""
        if self.status == "running":
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout)
        end_group(self.process)

    def restart(self, timeout: float = 10) -> None:
        self.stop(timeout)
        self._start()

    def exec_run(self, command: str | list[str]) -> tuple[int, bytes]:
        argv = shlex.split(command) if isinstance(command, str) else command
        done = subprocess.run(
            argv,
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.returncode, done.stdout

    def _start(self) -> None:
        self._starts += 1
        self.process = spawn(self.argv, self.log, cwd=self.folder, env=self.env)


class _Local:
    """Mixed in before a pytest-celery container: wait by its log, end its process."""

    def _wait_ready(self, timeout: float = 60) -> bool:
        def look() -> bool:
            if self.ready_prompt in self.logs():
                return True
            if self.status != "running":
                raise RuntimeError(f"{self.name} ended:\n{self.logs()}")
            return False

        return wait_until(look, timeout, lambda: f"{self.name}:\n{self.logs()}")

    def teardown(self) -> None:
        super().teardown()  # type: ignore[misc]
        end_group(self._container.process)  # called more than once by pytest-celery


class LocalRedis(_Local, RedisContainer):
    """Broker or result backend: a Redis server on a free port of loopback."""

    def __init__(self, process: LocalProcess, port: int) -> None:
        super().__init__(process)
        self._port = port

    @classmethod
    def launch(cls, folder: Path) -> LocalRedis:
        folder.mkdir(parents=True)
        port = free_port()
        options = cls.command("--port", str(port), "--bind", LOOPBACK, "--dir", str(folder))
        return cls(LocalProcess([find_redis_binary(), *options[1:]], folder), port)

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"{self.prefix()}{LOOPBACK}:{self._port}/{self.vhost}"

    @property
    def host_url(self) -> str:
        return self.url  # inside and outside of the "network" are one place


class LocalWorker(_Local, CeleryWorkerContainer):
    """A worker whose files lie in a folder instead of a volume."""

    @classmethod
    def launch(
        cls,
        command: Sequence[str],
        env: Mapping[str, str],
        content: Mapping[str, bytes],
        folder: Path,
    ) -> LocalWorker:
        for name, data in content.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        node = uuid.uuid4().hex[:12]  # %h would be this machine's name, the same for all nodes
        argv = [sys.executable, "-m", *(part.replace("%h", node) for part in command)]
        paths = os.pathsep.join([str(folder), str(ROOT)])
        process = LocalProcess(argv, folder, {**env, "PYTHONPATH": paths, "TMPDIR": str(folder)})
        process.id = node
        return cls(process)


class LocalWorkerNode(CeleryTestWorker):
    """The node that a test sees as ``celery_setup.worker``."""

    def hostname(self) -> str:
        return f"{self.worker_name}@{self.container.id}"
