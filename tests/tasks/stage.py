"""A server, an app, a ledger and workers that a whole module of tests shares: starting costs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from celery_idem.binding import store_of
from celery_idem.core.record import Record
from tests.support.apps import apps_forgotten
from tests.support.effects import ENV as EFFECTS_ENV
from tests.support.effects import Effects
from tests.support.servers import RedisServer, missing_redis
from tests.support.workers import Worker


class Stage:
    """What the tests of one module play on; each uses keys of its own."""

    def __init__(self, directory: Path, module: str, server: RedisServer) -> None:
        self.directory = directory
        self.server = server
        self.effects = Effects(directory / "effects.jsonl")
        self.workers: list[Worker] = []
        self._module = module
        self.tasks: Any = None

    def load(self) -> ModuleType:
        sys.modules.pop(self._module, None)
        module = importlib.import_module(self._module)
        self.tasks = module
        return module

    def start_worker(self, *, wait: bool = True, **options: Any) -> Worker:
        worker = Worker(f"{self._module}:app", self.directory / "workers", **options)
        self.workers.append(worker)
        worker.start()
        return worker.wait_ready() if wait else worker

    def worker_of(self, pid: int) -> Worker:
        """The worker that this process belongs to."""
        return next(w for w in self.workers if pid in w.members())

    def record(self, key: str) -> Record | None:
        return store_of(self.tasks.app).get(key)

    def gate(self, name: str) -> Path:
        """A file that a gated body waits for; ``touch`` it to let the body go on."""
        return self.directory / f"gate-{name}"

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        sys.modules.pop(self._module, None)
        if self.tasks is not None:
            self.tasks.app.close()


@contextmanager
def open_stage(
    tmp_path_factory: pytest.TempPathFactory, module: str, *, durable: bool = False, **env: str
) -> Iterator[Stage]:
    """A stage with no worker yet. ``env`` is what the app's module reads; the server's own URL is
    ``TEST_BROKER`` unless it is given."""
    if reason := missing_redis():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("stage")
    with (
        RedisServer(directory / "redis", durable=durable) as server,
        pytest.MonkeyPatch.context() as p,
        apps_forgotten(),
    ):
        stage = Stage(directory, module, server)
        for name, value in {"TEST_BROKER": server.url(), **env}.items():
            p.setenv(name, value)
        p.setenv(EFFECTS_ENV, str(stage.effects.path))
        stage.load()
        try:
            yield stage
        finally:
            stage.close()
