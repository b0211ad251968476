"""What may not make others wait: long jobs, delayed and rate-limited ones, busy workers."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.lanes.conftest import LaneRun
from tests.support.waiting import wait_until

RESERVED = {"critical": {"weight": 10, "reserve": 1}, "normal": 5, "low": 1}


def send_one(lanes: LaneRun, lane: str, number: int, busy_s: float = 0.0, **options: Any) -> None:
    assert lanes.module is not None
    lanes.module.note.apply_async((lane, number, busy_s, time.time()), queue=lane, **options)


@pytest.mark.slow
def test_a_reserved_process_serves_critical_work_under_a_burst_of_long_jobs(
    lanes: LaneRun,
) -> None:
    lanes.configure(RESERVED)
    lanes.send("low", 100, busy_s=30)
    lanes.worker(concurrency=4)
    lanes.effects.wait_count("low", 3)

    for number in range(12):
        send_one(lanes, "critical", number)
        lanes.effects.wait_count("critical", number + 1)

    # the fourth process was never given to a low job
    assert lanes.effects.count("low") == 3


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.rabbitmq
def test_a_reserve_holds_under_autoscale(lanes: LaneRun) -> None:
    lanes.configure(RESERVED)
    lanes.send("low", 20, busy_s=60)
    worker = lanes.worker(concurrency=2, extra=["--autoscale=4,2"])
    lanes.effects.wait_count("low", 3)

    for number in range(3):
        send_one(lanes, "critical", number)
        lanes.effects.wait_count("critical", number + 1)

    assert lanes.effects.count("low") == 3
    assert len(worker.children()) == 4


@pytest.mark.slow
def test_c33_slow_jobs_never_take_the_reserved_process(lanes: LaneRun) -> None:
    lanes.configure({"critical": {"weight": 20, "reserve": 1}, "low": 4})
    lanes.send("low", 20, busy_s=60)
    lanes.send("critical", 300, busy_s=0.01)

    lanes.worker("critical", "low", concurrency=4)
    lanes.effects.wait_count("critical", 300)

    assert lanes.effects.count("low") == 3


@pytest.mark.slow
@pytest.mark.parametrize("late", [True, False], ids=["late ack", "early ack"])
def test_c30_a_short_job_is_never_parked_behind_a_long_one(lanes: LaneRun, late: bool) -> None:
    lanes.configure(conf={"task_acks_late": late})
    workers = [lanes.worker(concurrency=1, wait=False) for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    send_one(lanes, "low", 0, busy_s=300)
    lanes.effects.wait_count("low", 1)

    for number in range(8):
        send_one(lanes, "critical", number)
        # one of two workers is free all the time; the other one's job ends in five minutes
        lanes.effects.wait_count("critical", number + 1)


@pytest.mark.slow
def test_what_a_busy_worker_held_is_run_by_one_that_comes(lanes: LaneRun) -> None:
    lanes.configure()
    lanes.worker(concurrency=1)
    send_one(lanes, "low", 0, busy_s=300)
    lanes.effects.wait_count("low", 1)
    for number in range(5):
        send_one(lanes, "critical", number)
        send_one(lanes, "normal", number)

    lanes.worker(concurrency=1)

    lanes.effects.wait_count("critical", 5)
    lanes.effects.wait_count("normal", 5)


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.rabbitmq
def test_c31_delayed_messages_do_not_block_what_is_due(lanes: LaneRun) -> None:
    lanes.configure()
    lanes.send("low", 400, countdown=600)
    send_one(lanes, "low", 1)

    lanes.worker(concurrency=1)

    lanes.effects.wait_count("low", 1)
    assert lanes.effects.count("low") == 1


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.rabbitmq
@pytest.mark.parametrize("limit", [10, 50])
def test_c31_a_worker_holds_no_more_delayed_messages_than_it_is_told(
    lanes: LaneRun, limit: int
) -> None:
    module = lanes.configure(conf={"worker_eta_task_limit": limit})
    lanes.send("low", 400, countdown=600)
    worker = lanes.worker(concurrency=4)
    send_one(lanes, "critical", 1)

    lanes.effects.wait_count("critical", 1)  # the lane that is full of them blocks no other

    inspect = module.app.control.inspect([worker.hostname], timeout=20)
    held = inspect._request("lanes")[worker.hostname]["lanes"]["low"]["delayed"]
    assert 1 <= held <= limit


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.rabbitmq
def test_c31_delayed_messages_of_a_killed_worker_are_run_by_the_next(lanes: LaneRun) -> None:
    # restored after the visibility timeout on Redis, at once on RabbitMQ
    redis = {"visibility_timeout": 3, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    conf = {"broker_transport_options": redis} if lanes.broker == "redis" else {}
    module = lanes.configure(conf=conf)
    due = datetime.now(timezone.utc) + timedelta(seconds=20)
    lanes.send("low", 40, eta=due)
    worker = lanes.worker(concurrency=1)
    inspect = module.app.control.inspect([worker.hostname], timeout=3, limit=1)
    # on Redis all of them: killed while it fetches, stock kombu can lose the one that it has just
    # popped (C15); that is not what this is about
    enough = 40 if lanes.broker == "redis" else 10

    def held() -> bool:
        said = inspect._request("lanes") or {}
        low = said[worker.hostname]["lanes"]["low"] if worker.hostname in said else {}
        return low.get("delayed", 0) >= enough

    wait_until(held, 15, f"{enough} delayed messages in the worker")
    worker.kill_tree()
    assert lanes.effects.count("low") == 0
    lanes.worker(concurrency=1)

    lanes.effects.wait_for(
        lambda it: {line["number"] for line in it.lines("low")} == set(range(40)), 90, "all jobs"
    )


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.rabbitmq
def test_c32_a_rate_limited_task_does_not_block_the_one_behind_it(lanes: LaneRun) -> None:
    module = lanes.configure()
    for number in range(60):
        module.limited.apply_async(("limited", number), queue="low")
    send_one(lanes, "low", 1)

    lanes.worker(concurrency=1)

    lanes.effects.wait_count("low", 1)
    assert lanes.effects.count("limited") < 30
    numbers = [line["number"] for line in lanes.effects.lines("limited")]
    assert numbers == sorted(numbers)
