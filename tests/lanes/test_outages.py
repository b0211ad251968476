"""Lanes after the connection broke, and at a worker's end: nothing lost, still by weight."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.lanes.conftest import LaneRun
from tests.support.proxy import FaultProxy
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True),
    pytest.mark.rabbitmq,
]


@pytest.mark.slow
def test_after_a_reset_lanes_are_served_by_weight_again(lanes: LaneRun, proxy: FaultProxy) -> None:
    lanes.configure()
    worker = lanes.worker()
    lanes.send("critical", 5)
    lanes.effects.wait_count("critical", 5)

    proxy.reset_all()
    worker.wait_log("Connection to broker lost")
    lanes.send_while_frozen(worker, 300, busy_s=0.01)
    begun = len(lanes.effects.lines()) + 10  # what a pushing broker sends first is not all three
    runs = lanes.first(begun + 160)[begun:]

    served = Counter(line["key"] for line in runs)
    assert abs(served["critical"] - 100) <= 5
    assert abs(served["normal"] - 50) <= 5
    assert abs(served["low"] - 10) <= 5


def test_jobs_that_run_while_the_connection_is_reset_keep_no_place_when_they_have_ended(
    lanes: LaneRun, proxy: FaultProxy
) -> None:
    """Celery before 5.6.3 forgets them: it calls nobody back."""
    module = lanes.configure()
    worker = lanes.worker(concurrency=2)
    lanes.send("low", 2, busy_s=3)
    lanes.effects.wait_count("low", 2)

    proxy.reset_all()
    worker.wait_log("Connection to broker lost")
    for lane in ("low", "normal", "critical"):
        for number in range(5):
            module.note.apply_async((f"{lane} after", number), queue=lane)

    for lane in ("low", "normal", "critical"):
        lanes.effects.wait_count(f"{lane} after", 5)
    wait_until(lambda: lanes.running(worker) == 0, what="no place in use")


@pytest.mark.slow
def test_jobs_on_their_way_to_the_processes_when_the_connection_is_reset_keep_no_place(
    lanes: LaneRun, proxy: FaultProxy
) -> None:
    module = lanes.configure()
    for lane in ("low", "normal", "critical"):
        lanes.send(lane, 200, busy_s=0.005)
    worker = lanes.worker(concurrency=4)

    for reset in range(5):
        begun = len(lanes.effects.lines())
        lanes.effects.wait_for(lambda it, n=begun + 30: len(it.lines()) >= n, what="thirty runs")  # type: ignore[misc]
        proxy.reset_all()
        wait_until(
            lambda n=reset: worker.log_text().count("Connection to broker lost") > n,  # type: ignore[misc]
            what="a lost connection",
        )
    for lane in ("low", "normal", "critical"):
        module.note.apply_async((f"{lane} after", 0), queue=lane)

    for lane in ("low", "normal", "critical"):
        lanes.effects.wait_count(f"{lane} after", 1)
    wait_until(lambda: lanes.running(worker) == 0, what="no place in use")


@pytest.mark.slow
def test_what_waits_in_a_worker_that_is_told_to_end_is_run_by_the_next(lanes: LaneRun) -> None:
    lanes.configure()
    for lane in ("critical", "normal", "low"):
        lanes.send(lane, 20, busy_s=0.1)
    worker = lanes.worker()
    lanes.first(10)

    worker.term()
    worker.wait_exit()
    lanes.worker()
    for lane in ("critical", "normal", "low"):
        lanes.effects.wait_count(lane, 20)

    runs = Counter((line["key"], line["number"]) for line in lanes.effects.lines())
    assert len(runs) == 60
    assert set(runs.values()) == {1}


@pytest.mark.slow
def test_a_killed_worker_loses_nothing_of_any_lane(lanes: LaneRun) -> None:
    # restored after the visibility timeout on Redis, at once on RabbitMQ
    redis = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    conf = {"broker_transport_options": redis} if lanes.broker == "redis" else {}
    lanes.configure(conf=conf)
    for lane in ("critical", "normal", "low"):
        lanes.send(lane, 15, busy_s=0.2)
    worker = lanes.worker()
    lanes.first(6)

    worker.kill_tree()
    lanes.worker()

    wanted = {(lane, number) for lane in ("critical", "normal", "low") for number in range(15)}
    lanes.effects.wait_for(
        lambda it: {(line["key"], line["number"]) for line in it.lines()} == wanted, 60, "all jobs"
    )


@pytest.mark.slow
def test_deadline_order_serves_what_is_due_first(lanes: LaneRun) -> None:
    lanes.configure({"critical": {"deadline": 5}, "low": {"deadline": 600}}, lane_order="deadline")
    lanes.send("low", 100, busy_s=0.02)
    lanes.send("critical", 40, busy_s=0.02)

    lanes.worker("critical", "low", concurrency=1)
    runs = [line["key"] for line in lanes.first(140)]

    # all of critical is due nearly ten minutes before any of low
    assert runs.index("low") >= 40 or runs[:45].count("critical") >= 40


def test_a_task_that_is_revoked_while_it_waits_frees_its_place(lanes: LaneRun) -> None:
    module = lanes.configure()
    worker = lanes.worker(concurrency=1)
    lanes.send("low", 1, busy_s=3)
    lanes.effects.wait_count("low", 1)
    victims = [module.note.apply_async(("never", number), queue="low") for number in range(3)]
    module.app.control.revoke([victim.id for victim in victims], reply=True, timeout=10, limit=1)

    for lane in ("low", "critical"):
        lanes.send(lane, 5)
    lanes.effects.wait_count("low", 6)
    lanes.effects.wait_count("critical", 5)

    assert lanes.effects.count("never") == 0
    said = module.app.control.inspect([worker.hostname], timeout=20)._request("lanes")
    running = [lane["running"] for lane in said[worker.hostname]["lanes"].values()]
    assert sum(running) <= 1  # the last may just be ending
