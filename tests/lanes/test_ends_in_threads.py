"""Ends that come from beside the event loop."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.asynchronous import Hub

from celery_idem.core.settings import Settings
from celery_idem.lanes.consumer import WorkerLanes
from celery_idem.lanes.pool import watch_pool


class Threads:
    """What lanes need of a pool whose jobs end in threads: it is given jobs, and they end."""

    __module__ = "celery.concurrency.thread"
    num_processes = 4

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []

    def apply_async(self, target: Any, args: Any, kwargs: Any, **options: Any) -> None:
        self.jobs.append(options)


class Request:
    """One request, as far as lanes look at it."""

    delivery_info = {"routing_key": "low"}
    request_dict: dict[str, Any] = {}

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    def on_success(self, result: Any) -> None:
        """The pool's callback."""


def run(todo: Iterable[Any]) -> None:
    """As the loop does: what else is due is dropped when one fails."""
    for due in todo:
        due()


def test_a_start_that_fails_leaves_no_end_of_the_same_moment_unnoted() -> None:
    with Celery("threads", broker="memory://", set_as_current=False) as app:
        settings = Settings.from_dict({"lanes": {"low": 1}})
        app.amqp.queues.select(["low"])
        pool, hub = Threads(), Hub()

        def hand_on(request: Request) -> None:
            if request.broken:
                raise RuntimeError("not to be started")
            pool.apply_async(len, (), {}, callback=request.on_success)

        consumer = SimpleNamespace(
            app=app, hub=hub, pool=pool, controller=None, on_task_request=hand_on
        )
        lanes = WorkerLanes(consumer, settings)
        watch_pool(consumer, lanes, None)
        for request in [*(Request() for _ in range(4)), Request(broken=True)]:
            lanes.received(request)
            lanes.submit(request)
        before = lanes.line.running["low"]

        for job in pool.jobs:
            job["callback"](None)
        with pytest.raises(RuntimeError, match="not to be started"):
            run(hub._pop_ready())
        hub.close()

    assert before == 4
    assert lanes.line.running["low"] == 0
