"""Lanes on real brokers: one fixture per broker, and a backlog to be served."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.effects import Effects
from tests.support.proxy import FaultProxy
from tests.support.workers import Worker

APP = "tests.apps.lanes:app"
WEIGHTS = {"critical": 10, "normal": 5, "low": 1}


@dataclass
class LaneRun:
    """One app on one broker, its workers and its ledger."""

    broker: str
    url: str
    effects: Effects
    load_app: Callable[..., ModuleType]
    start_worker: Callable[..., Worker]
    module: ModuleType | None = None

    def configure(self, lanes: Any = None, *, conf: Any = None, **idem: Any) -> ModuleType:
        """Load the app with these lanes (default 10:5:1); workers inherit the settings."""
        settings = {"lanes": WEIGHTS if lanes is None else lanes, **idem}
        self.module = self.load_app(
            "tests.apps.lanes",
            TEST_BROKER=self.url,
            TEST_IDEM=json.dumps(settings),
            TEST_CONF=json.dumps(conf or {}),
            TEST_QUORUM="1" if self.broker == "quorum" else "",
        )
        return self.module

    def send(self, lane: str, count: int, busy_s: float = 0.0, **options: Any) -> None:
        """Publish ``count`` jobs that note that they run and are busy for a while."""
        assert self.module is not None
        with self.module.app.producer_or_acquire() as producer:
            for number in range(count):
                self.module.note.apply_async(
                    (lane, number, busy_s), queue=lane, producer=producer, **options
                )

    def send_while_frozen(self, worker: Worker, count: int, busy_s: float) -> None:
        """Backlogs of all three lanes that are there before the worker sees any of them, however
        slowly they are published."""
        worker.stop_tree()
        try:
            for lane in ("low", "normal", "critical"):
                self.send(lane, count, busy_s)
        finally:
            worker.cont_tree()

    def worker(self, *queues: str, concurrency: int = 2, **options: Any) -> Worker:
        """A ready worker of the app, on the three lanes unless told otherwise."""
        queues = queues or ("critical", "normal", "low")
        return self.start_worker(APP, queues=queues, concurrency=concurrency, **options)

    def running(self, worker: Worker) -> int | None:
        """How many jobs the worker counts as running; None: it does not answer now."""
        assert self.module is not None
        inspect = self.module.app.control.inspect([worker.hostname], timeout=5, limit=1)
        said = (inspect._request("lanes") or {}).get(worker.hostname)
        return said and sum(lane["running"] for lane in said["lanes"].values())

    def first(self, count: int, deadline_s: float = 60.0) -> list[dict[str, Any]]:
        """The first so many runs, in order."""
        self.effects.wait_for(lambda it: len(it.lines()) >= count, deadline_s, f"{count} runs")
        return self.effects.lines()[:count]


@pytest.fixture(
    params=[
        "redis",
        pytest.param("rabbitmq", marks=pytest.mark.rabbitmq),
        pytest.param("quorum", marks=pytest.mark.rabbitmq),
    ]
)
def broker(request: pytest.FixtureRequest) -> str:
    """Redis, RabbitMQ's classic queues, RabbitMQ's quorum queues."""
    return str(request.param)


@pytest.fixture
def lanes(
    broker: str,
    request: pytest.FixtureRequest,
    effects: Effects,
    load_app: Callable[..., ModuleType],
    start_worker: Callable[..., Worker],
) -> LaneRun:
    """An app with lanes on this broker; call ``configure`` first."""
    if broker == "redis":
        url = request.getfixturevalue("redis_url")
    else:
        rabbit = request.getfixturevalue("rabbitmq")
        if reason := rabbit.missing_vhost():
            pytest.skip(reason)
        url = rabbit.url
    return LaneRun(broker, url, effects, load_app, start_worker)


@pytest.fixture
def proxy(lanes: LaneRun, fault_proxy: Callable[[tuple[str, int]], FaultProxy]) -> FaultProxy:
    """What every connection of the app and its workers goes through."""
    direct = urlsplit(lanes.url)
    proxy = fault_proxy((direct.hostname or "", direct.port or 0))
    place = direct.netloc.replace(f"{direct.hostname}:{direct.port}", f"127.0.0.1:{proxy.port}")
    lanes.url = direct._replace(netloc=place).geturl()
    return proxy
