"""What the tests of faults share: the app of faulty tasks on a private server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_idem.binding import store_of
from celery_idem.core.record import Record
from tests.support.effects import Effects
from tests.support.workers import Worker

APP = "tests.apps.faulty:app"
LEASE_S = 1.5
DEADLINE_S = 60


@pytest.fixture
def load(redis_server: Any, effects: Effects, load_app: Any) -> Callable[..., Any]:
    """Factory ``load(idem={…}, TEST_…=…)`` of the app; the lease is 1.5 s unless it says else."""

    def make(idem: dict[str, Any] | None = None, **env: str) -> Any:
        settings = {"lease_s": LEASE_S, **(idem or {})}
        return load_app(
            "tests.apps.faulty",
            **{"TEST_BROKER": redis_server.url(), "TEST_IDEM": json.dumps(settings), **env},
        )

    return make


@pytest.fixture
def gate(tmp_path: Path) -> Callable[..., Any]:
    """``gate()`` is the path to give to a body; ``gate(2)`` the file that its second start waits
    for: touch it."""
    return lambda number=None: tmp_path / ("gate" if number is None else f"gate-{number}")


@pytest.fixture
def two_workers(start_worker: Any) -> Callable[..., list[Worker]]:
    """Factory of two ready workers, of one process each."""

    def start(**options: Any) -> list[Worker]:
        workers = [start_worker(APP, wait=False, **options) for _ in range(2)]
        return [worker.wait_ready() for worker in workers]

    return start


def holder_of(workers: list[Worker], effects: Effects, name: str) -> tuple[Worker, Worker]:
    """The worker that started ``name`` first, and the other one."""
    pid = effects.lines(f"start:{name}")[0]["pid"]
    first, second = workers
    return (first, second) if pid in first.members() else (second, first)


def record_of(tasks: Any, key: str) -> Record:
    record = store_of(tasks.app).get(key)
    assert record is not None, f"no record of {key}"
    return record
