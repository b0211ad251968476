"""A queue filled while nobody looks, opened at once, and watched until it is empty."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import redis

from tests.support.servers import RedisServer
from tests.support.workers import Worker

#: The queue into which messages are sent before the clock starts.
STAGE = "stage"
POLL_S = 0.004
RUN_DEADLINE_S = 120.0

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Run:
    """One batch of one task, measured."""

    messages: int
    wall_s: float
    publish_s: float
    parent_cpu_s: float
    children_cpu_s: float
    server_cpu_s: float

    @property
    def cpu_s(self) -> float:
        """Of all processes."""
        return self.parent_cpu_s + self.children_cpu_s + self.server_cpu_s

    @property
    def per_second(self) -> float:
        return self.messages / self.wall_s


@dataclass(slots=True)
class Bench:
    """A broker, a store, and a worker for each app, for the length of a ``with`` block.

    ``apart=True``: the store is a server of its own, so that its statistics are only ours.
    """

    pool: str = "prefork"
    concurrency: int = 2
    apart: bool = False
    apps: tuple[str, ...] = ("stock", "guarded", "peers")
    modules: dict[str, ModuleType] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)
    broker: RedisServer = field(init=False)
    store: RedisServer = field(init=False)
    _ends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Bench:
        with contextlib.ExitStack() as ends:
            self.folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            self.broker = ends.enter_context(RedisServer(self.folder / "broker", durable=False))
            self.store = self.broker
            if self.apart:
                self.store = ends.enter_context(RedisServer(self.folder / "store", durable=False))
            ends.enter_context(_environment(self.broker.url(), self.store.url()))
            for name in self.apps:
                self._open(name, ends)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ends.close()

    def _open(self, name: str, ends: contextlib.ExitStack) -> None:
        module = f"benchmarks.{name}"
        sys.modules.pop(module, None)  # it reads the environment at import
        self.modules[name] = importlib.import_module(module)
        ends.callback(self.modules[name].app.close)
        self.workers[name] = ends.enter_context(
            Worker(
                f"{module}:app", self.folder, queues=[name], pool=self.pool,
                concurrency=self.concurrency, loglevel="ERROR", extra=["--without-heartbeat"],
            )
        )  # fmt: skip

    def task(self, name: str) -> Any:
        """``guarded.keyed`` → that task; ``peers.<package>`` → its task."""
        app, _, task = name.partition(".")
        module = self.modules[app]
        return module.TASKS[task] if app == "peers" else getattr(module, task)

    def run(self, name: str, messages: int) -> Run:
        """Send that many messages, then measure until all are acked."""
        begun = time.perf_counter()
        self.send(name, messages)
        publish_s = time.perf_counter() - begun
        worker = self.workers[_queue(name)]
        before = (*cpu_of(worker), self._server_cpu())
        wall_s = self.drain(name)
        after = (*cpu_of(worker), self._server_cpu())
        used = [now - then for now, then in zip(after, before, strict=True)]
        return Run(messages, wall_s, publish_s, *used)

    def send(self, name: str, messages: int, first: int | None = None) -> int:
        """Send to the stage, numbered from ``first`` (default: numbers never used before, which
        are other keys); returns the first number."""
        task = self.task(name)
        first = next(_numbers) * 1_000_000 if first is None else first
        with task.app.producer_pool.acquire(block=True) as producer:
            for number in range(first, first + messages):
                task.apply_async((number,), queue=STAGE, producer=producer)
        return first

    def drain(self, name: str) -> float:
        """Open the stage to the worker; returns the seconds until everything is acked."""
        queue = _queue(name)
        with self.broker.client() as client:
            begun = time.perf_counter()
            client.rename(STAGE, queue)
            return self._until_empty(client, queue, begun)

    def _until_empty(self, client: redis.Redis, queue: str, begun: float) -> float:
        """Seconds until the queue is empty and nothing is unacked, seen three times in a row: a
        message that is popped and not yet recorded is in neither."""
        worker = self.workers[queue]
        empty = 0
        at = 0.0
        while empty < 3:
            late = time.perf_counter() - begun > RUN_DEADLINE_S
            if late or worker.returncode is not None:
                raise RuntimeError(
                    f"the worker of {queue!r} hangs or is dead:\n{worker.log_text()}"
                )
            time.sleep(POLL_S)
            with client.pipeline(transaction=True) as look:
                look.llen(queue)
                look.hlen("unacked")
                left = sum(look.execute())
            if left:
                empty = 0
            else:
                at = at if empty else time.perf_counter() - begun
                empty += 1
        return at

    def _server_cpu(self) -> float:
        with self.broker.client() as client:
            used = client.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    def warm_up(self, names: list[str], messages: int = 200) -> None:
        """Once through every task, so that processes, connections and scripts are there."""
        for name in names:
            self.run(name, messages)


def _queue(name: str) -> str:
    return name.partition(".")[0]


def cpu_of(worker: Worker) -> tuple[float, float]:
    """CPU seconds of the worker's main process, and of its children."""
    parent = psutil.Process(worker.pid)

    def used(process: psutil.Process) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    return used(parent), sum(used(child) for child in parent.children())


@contextlib.contextmanager
def _environment(broker: str, store: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(BENCH_BROKER=broker, BENCH_STORE=store)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
