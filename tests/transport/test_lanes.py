"""Lanes on the streams transport: the lanes' own tests again, and the fetch's shares by themselves.

The tests imported here run with this module's ``broker`` fixture.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import ClassVar

import pytest
from kombu import Connection, Consumer, Producer, Queue

from celery_idem.core.order import Lane, WeightedOrder
from tests.lanes.conftest import LaneRun
from tests.lanes.test_outages import test_deadline_order_serves_what_is_due_first  # noqa: F401
from tests.lanes.test_shares import (  # noqa: F401
    test_a_lane_alone_gets_everything_and_the_others_join_at_once,
    test_c27_the_lane_comes_first_and_the_message_priority_second,
    test_strict_order_serves_by_rank_and_starves,
    test_three_backlogs_are_served_ten_five_one,
)
from tests.lanes.test_status import cell, run, seen
from tests.lanes.test_waiting import (  # noqa: F401
    test_a_reserved_process_serves_critical_work_under_a_burst_of_long_jobs,
    test_c30_a_short_job_is_never_parked_behind_a_long_one,
    test_what_a_busy_worker_held_is_run_by_one_that_comes,
)
from tests.support.effects import Effects
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.workers import Worker
from tests.transport.conftest import streams


@pytest.fixture
def broker() -> str:
    return "streams"


@pytest.fixture
def lanes(
    broker: str,
    redis_url: str,
    effects: Effects,
    load_app: Callable[..., ModuleType],
    start_worker: Callable[..., Worker],
) -> LaneRun:
    return LaneRun(broker, streams(redis_url), effects, load_app, start_worker)


def test_the_lanes_command_shows_ages_and_what_is_held_and_delayed(
    lanes: LaneRun, redis_session_server: RedisServer
) -> None:
    """S-P5: a stream's ids carry the time, and its pending list says who holds what."""
    lanes.configure()
    lanes.worker("low", concurrency=1)
    lanes.send("low", 3, busy_s=300)
    lanes.send("critical", 1)
    lanes.send("normal", 2, countdown=600)
    lanes.effects.wait_count("low", 1)
    waited_s = 1.0
    with redis_session_server.client() as client:
        begun_s = client.time()[0]
        wait_until(lambda: client.time()[0] > begun_s + waited_s, 60, "a second of its clock")

    found, table = seen(), run("--timeout", "5").stdout

    assert (found["low"]["depth"], found["low"]["held"]) == (2, 1)
    assert found["low"]["longest_held_s"] >= waited_s
    assert found["low"]["oldest_s"] >= waited_s
    assert (found["critical"]["depth"], found["critical"]["held"]) == (1, 0)
    assert found["critical"]["oldest_s"] >= waited_s
    assert found["critical"]["longest_held_s"] is None
    assert (found["normal"]["depth"], found["normal"]["delayed"]) == (0, 2)
    assert found["normal"]["oldest_s"] is None
    assert cell(table, "low", "held").startswith("1, ")
    assert cell(table, "normal", "delayed") == "2"
    assert cell(table, "normal", "oldest") == "–"


class Weighted:
    """A kombu strategy of 10:5:1, message by message or so many ahead."""

    lanes: ClassVar = [Lane("critical", 10.0), Lane("normal", 5.0), Lane("low", 1.0)]

    def __init__(self) -> None:
        self.order = WeightedOrder(self.lanes)

    def update(self, queues) -> None:
        self.queues = set(queues)

    def consume(self, n):
        return [lane for lane in self.order.preference(0.0) if lane in self.queues][:n]

    def rotate(self, last_used):
        offered = self.consume(3)
        self.order.took(last_used, offered[: offered.index(last_used)])


def taken(url: str, strategy: type, count: int, prefetch: int, sent: dict[str, int]) -> list[str]:
    """The queues of the first so many messages, acked one by one."""
    options = {"queue_order_strategy": strategy}
    got: list[str] = []
    with Connection(streams(url), transport_options=options) as connection:
        channel = connection.default_channel
        producer = Producer(channel)
        for queue, number in sent.items():
            for _ in range(number):
                producer.publish(queue, routing_key=queue)
        channel.basic_qos(0, prefetch, False)
        queues = [Queue(name) for name in sent]

        def take(body, message) -> None:
            got.append(body)
            message.ack()

        with Consumer(channel, queues, callbacks=[take]):
            while len(got) < count:
                connection.drain_events(timeout=5)
    return got[:count]


@pytest.mark.parametrize("prefetch", [1, 16])
def test_shares_are_exact_to_the_message_for_one_worker(prefetch, redis_url):
    """S-P3"""
    backlog = dict.fromkeys(("critical", "normal", "low"), 200)

    got = taken(redis_url, Weighted, 160, prefetch, backlog)

    assert Counter(got) == {"critical": 100, "normal": 50, "low": 10}
    for start in range(0, 160, 16):
        assert Counter(got[start : start + 16]) == {"critical": 10, "normal": 5, "low": 1}


def test_what_an_empty_lane_does_not_use_goes_to_the_others_by_weight(redis_url):
    got = taken(redis_url, Weighted, 60, 6, {"critical": 0, "normal": 100, "low": 100})

    assert Counter(got) == {"normal": 50, "low": 10}


def test_a_strict_order_takes_the_next_lane_only_when_the_one_before_is_empty(redis_url):
    got = taken(redis_url, "priority", 30, 8, {"a": 10, "b": 10, "c": 10})

    assert got == ["a"] * 10 + ["b"] * 10 + ["c"] * 10


def test_kombus_round_robin_shares_evenly(redis_url):
    got = taken(redis_url, "round_robin", 30, 6, {"a": 20, "b": 20, "c": 20})

    assert Counter(got) == {"a": 10, "b": 10, "c": 10}


class Promised(Weighted):
    """By deadline: low within a minute, critical within five seconds."""

    promises: ClassVar = {"critical": 5_000, "low": 60_000}

    def promises_ms(self, queues):
        return [self.promises[queue] for queue in queues]


def test_deadline_order_is_exact_by_the_age_of_what_waits(redis_url, redis_session_server):
    """S-P1: the server looks at the oldest of each lane; nothing has to be seen before."""
    waiting = {"low": (70_000, 30_000, 0), "critical": (1_000, 0)}
    with redis_session_server.client() as client, Connection(streams(redis_url)) as connection:
        seconds = client.time()[0]
        for queue, ages_ms in waiting.items():
            channel = connection.default_channel
            for age_ms in ages_ms:
                message = channel.prepare_message(f"{queue} {age_ms}", headers={})
                message["properties"].update(
                    delivery_info={"exchange": "", "routing_key": queue}, delivery_tag="t"
                )
                sent = f"{seconds * 1000 - age_ms}-{age_ms}"
                client.xadd(f"rs:{{{queue}}}:0", {"m": json.dumps(message)}, id=sent)

    got = taken(redis_url, Promised, 5, 1, dict.fromkeys(waiting, 0))

    assert got == ["low 70000", "critical 1000", "critical 0", "low 30000", "low 0"]
