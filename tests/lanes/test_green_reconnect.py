"""Green threads go on while the consumer reconnects: nobody is there to read what they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.utils.timer2 import Schedule
from redis import Redis
from redis.exceptions import ConnectionError as Lost

from celery_idem.lanes.consumer import LaneStep, WorkerLanes
from tests.lanes.conftest import LaneRun
from tests.support.proxy import FaultProxy
from tests.support.waiting import wait_until


@pytest.fixture
def consumer(redis_url: str) -> Iterator[Any]:
    """What a bootstep sees of a consumer without an event loop, whose lanes have just asked."""
    others = asking(redis_url)
    with Celery("green", broker=redis_url, set_as_current=False) as app:
        app.conf.idem = {"lanes": {"critical": 10, "low": 1}}
        app.amqp.queues.select(["critical", "low"])
        with app.connection_for_read() as connection:
            channel: Any = connection.channel()
            consumer = SimpleNamespace(
                app=app,
                hub=None,
                timer=Schedule(),
                pool=SimpleNamespace(is_green=True, _pool=None, limit=2, apply_async=None),
                controller=SimpleNamespace(),
                connection=connection,
                task_consumer=SimpleNamespace(channel=channel),
                call_soon_ack=None,
                on_task_request=lambda request: None,
                on_connection_error_after_connected=lambda error: None,
            )
            consumer.is_asking = lambda: bool(asking(redis_url) - others)
            consumer.step = LaneStep(consumer)
            consumer.step.start(consumer)
            for queue in ("critical", "low"):
                channel.basic_consume(queue, False, lambda message: None, queue)
            consumer.idem_lanes.pump()
            yield consumer


def asking(redis_url: str) -> set[str]:
    """Ids of the connections that wait in a BRPOP, or have left one unread."""
    with Redis.from_url(redis_url) as client:
        return {it["id"] for it in client.client_list() if it["cmd"] == "brpop"}


GONE: dict[str, Callable[[Any], None]] = {
    "the error is noticed": lambda it: it.on_connection_error_after_connected(Lost("gone")),
    "the consumer is stopped": lambda it: it.step.stop(it),
}


@pytest.mark.parametrize("gone", GONE)
def test_nothing_is_asked_for_on_a_lost_connection(consumer: Any, gone: str) -> None:
    lanes: WorkerLanes = consumer.idem_lanes
    channel = consumer.task_consumer.channel
    before = consumer.is_asking()
    channel.client.connection.disconnect()
    wait_until(lambda: not consumer.is_asking(), what="a server that knows it")
    channel._in_poll = None  # as kombu leaves it when the answer can't be read

    GONE[gone](consumer)
    lanes.pump()  # as at the end of a job

    assert before
    assert not consumer.is_asking()


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_job_that_ends_while_a_green_worker_reconnects_takes_no_message_along(
    lanes: LaneRun, proxy: FaultProxy, tmp_path: Path
) -> None:
    module = lanes.configure()
    gate = tmp_path / "gate"
    worker = lanes.worker(concurrency=2, pool="gevent")
    module.held.apply_async(("held", str(gate)), queue="low")
    lanes.effects.wait_count("held", 1)

    proxy.cut()
    worker.wait_log(r"Trying again in 4\.00 seconds")
    proxy.heal()
    gate.touch()
    lanes.effects.wait_count("held:end", 1)
    lanes.send("low", 1)

    lanes.effects.wait_count("low", 1)
