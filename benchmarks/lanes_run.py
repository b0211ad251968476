"""One backlog on one broker, served by real workers, as a list of starts."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from tests.support.effects import ENV, Effects
from tests.support.rabbitmq import RabbitBroker
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.workers import Worker

APP = "tests.apps.lanes"
LANES = ("critical", "normal", "low")
WEIGHTS = {"critical": 10, "normal": 5, "low": 1}
RUN_DEADLINE_S = 180.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What serves: a broker, an order of stock Celery's or ours, workers and processes."""

    name: str
    broker: str  #: redis, rabbitmq or quorum
    idem: dict[str, Any] | None = None  #: None: stock
    stock_order: str = "round_robin"
    workers: int = 1
    processes: int = 2
    conf: dict[str, Any] = field(default_factory=dict)


def weighted(name: str, broker: str, *, lanes: Any = None, **options: Any) -> Setup:
    """Ours, at 10:5:1 unless told otherwise."""
    idem = {"lanes": lanes or WEIGHTS}
    for key in ("charge", "lane_order"):
        if key in options:
            idem[key] = options.pop(key)
    return Setup(name, broker, idem, **options)


@dataclass(frozen=True, slots=True)
class Start:
    """One job's start."""

    lane: str
    at_s: float
    wait_s: float
    busy_s: float


@dataclass(slots=True)
class Stage:
    """A broker with a backlog, before and while workers serve it."""

    setup: Setup
    module: ModuleType
    folder: Path
    effects: Effects
    parent_cpu_s: float = 0.0  #: of the workers' main processes, while they served

    def send(self, lane: str, count: int, busy_s: float = 0.0) -> None:
        """Publish jobs of one lane."""
        with self.module.app.producer_or_acquire() as producer:
            for number in range(count):
                self.module.note.apply_async(
                    (lane, number, busy_s, time.time()), queue=lane, producer=producer
                )

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Workers are there inside the block, started at the same time."""
        workers = [
            Worker(
                f"{APP}:app", self.folder, queues=LANES, concurrency=self.setup.processes,
                loglevel="INFO", extra=["--without-heartbeat"],
            )
            for _ in range(self.setup.workers)
        ]  # fmt: skip
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.wait_ready()
            before = sum(_cpu_s(worker.pid) for worker in workers)
            yield
            self.parent_cpu_s = sum(_cpu_s(worker.pid) for worker in workers) - before
        finally:
            for worker in workers:
                worker.close()

    def count(self) -> int:
        """Starts so far, without reading them."""
        return self.effects.path.read_bytes().count(b"\n") if self.effects.path.exists() else 0

    def wait(self, count: int) -> None:
        """Until so many have started."""
        wait_until(
            lambda: self.count() >= count,
            RUN_DEADLINE_S,
            lambda: f"{count} starts with {self.setup.name}, seen {self.count()}",
        )

    def wait_lane(self, lane: str, count: int) -> None:
        """Until so many of one lane have started."""
        self.effects.wait_count(lane, count, RUN_DEADLINE_S)

    def starts(self) -> list[Start]:
        """All starts, in order."""
        return [
            Start(line["key"], line["monotonic"], line["wait_s"], line["busy_s"])
            for line in self.effects.lines()
        ]


@contextlib.contextmanager
def stage(setup: Setup) -> Iterator[Stage]:
    """A fresh broker (a server or a vhost of its own) and the app on it."""
    before = dict(os.environ)
    with contextlib.ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="lanes-")))
        if setup.broker == "redis":
            url = ends.enter_context(RedisServer(folder / "redis", durable=False)).url()
        else:
            url = ends.enter_context(RabbitBroker()).url
        ends.callback(_restore, before)
        os.environ.update(
            {
                "TEST_BROKER": url,
                "TEST_IDEM": json.dumps(setup.idem),
                "TEST_STOCK_ORDER": setup.stock_order,
                "TEST_CONF": json.dumps(setup.conf),
                "TEST_QUORUM": "1" if setup.broker == "quorum" else "",
                ENV: str(folder / "effects.jsonl"),
            }
        )
        sys.modules.pop(APP, None)
        module = importlib.import_module(APP)
        ends.callback(module.app.close)
        yield Stage(setup, module, folder, Effects(folder / "effects.jsonl"))


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _restore(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


@dataclass(frozen=True, slots=True)
class Served:
    """A backlog that was served to the end."""

    starts: list[Start]
    parent_cpu_ms: float  #: of the workers' main processes, per job that started after they were up


def serve_backlog(setup: Setup, counts: dict[str, int], busy_s: dict[str, float]) -> Served:
    """Backlogs are there, workers come, and serve them to the end."""
    with stage(setup) as it:
        for lane, count in counts.items():
            it.send(lane, count, busy_s.get(lane, 0.0))
        with it.served():
            before = it.count()
            it.wait(sum(counts.values()))
        jobs = max(sum(counts.values()) - before, 1)
        return Served(it.starts(), 1000 * it.parent_cpu_s / jobs)


def critical_under_flood(
    setup: Setup, low: int, busy_s: float, *, per_s: float, seconds: float
) -> list[Start]:
    """Critical jobs at a steady rate while low ones never run out."""
    with stage(setup) as it:
        it.send("low", low, busy_s)
        with it.served():
            it.wait_lane("low", setup.processes - 1)
            wanted = int(per_s * seconds)
            pace = threading.Event()
            begun = time.monotonic()
            for number in range(wanted):
                pace.wait(max(0.0, begun + number / per_s - time.monotonic()))
                it.send("critical", 1)
            it.wait_lane("critical", wanted)
        return it.starts()
