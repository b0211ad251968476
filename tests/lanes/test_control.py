"""Changes at run time by remote control, and what a worker says of its lanes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.lanes.conftest import LaneRun
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = [
    pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True),
    pytest.mark.rabbitmq,
]


#: A worker says that it is ready a moment before it hears a broadcast: it may be asked again.
PATIENT: dict[str, Any] = {"reply": True, "timeout": 3, "limit": 1}


def tell(lanes: LaneRun, worker: Worker, command: str, **arguments: Any) -> dict[str, str]:
    assert lanes.module is not None
    control, to = lanes.module.app.control, [worker.hostname]
    replies = wait_until(
        lambda: control.broadcast(command, arguments=arguments, destination=to, **PATIENT),
        what=f"an answer to {command}",
    )
    return dict(replies[0][worker.hostname])


def report(lanes: LaneRun, worker: Worker) -> dict[str, Any]:
    assert lanes.module is not None
    inspect = lanes.module.app.control.inspect([worker.hostname], timeout=3, limit=1)
    said = wait_until(lambda: inspect._request("lanes"), what="an answer to lanes")
    return dict(said[worker.hostname])


def test_another_weight_divides_from_then_on(lanes: LaneRun) -> None:
    lanes.configure()
    worker = lanes.worker()

    answer = tell(lanes, worker, "lane_weight", lane="low", weight=10)
    lanes.send_while_frozen(worker, 300, busy_s=0.01)
    begun = len(lanes.effects.lines()) + 10  # what a pushing broker sends first is not all three
    served = Counter(line["key"] for line in lanes.first(begun + 150)[begun:])

    assert answer["ok"].startswith("lane 'low' has weight 10 until this worker restarts")
    assert abs(served["critical"] - 60) <= 4
    assert abs(served["normal"] - 30) <= 4
    assert abs(served["low"] - 60) <= 4
    assert report(lanes, worker)["lanes"]["low"]["weight"] == 10


def test_a_paused_lane_waits_and_a_resumed_one_is_served(lanes: LaneRun) -> None:
    lanes.configure()
    worker = lanes.worker()

    paused = tell(lanes, worker, "lane_pause", lane="low")
    lanes.send("low", 10)
    lanes.send("critical", 50, busy_s=0.01)
    lanes.effects.wait_count("critical", 50)
    before = lanes.effects.count("low")
    said = report(lanes, worker)
    resumed = tell(lanes, worker, "lane_resume", lane="low")
    lanes.effects.wait_count("low", 10)

    assert before == 0
    assert said["lanes"]["low"]["paused"] is True
    assert "paused until this worker restarts" in paused["ok"]
    assert resumed["ok"] == "lane 'low' is served"


def test_what_comes_just_after_a_pause_is_run_by_another_worker(lanes: LaneRun) -> None:
    lanes.configure()
    paused = lanes.worker("low", concurrency=1)

    tell(lanes, paused, "lane_pause", lane="low")
    lanes.send("low", 1)
    lanes.worker("low", concurrency=1)

    lanes.effects.wait_count("low", 1)


def test_wrong_commands_are_answered_clearly(lanes: LaneRun) -> None:
    lanes.configure()
    worker = lanes.worker()

    unknown = tell(lanes, worker, "lane_weight", lane="bulk", weight=3)
    zero = tell(lanes, worker, "lane_weight", lane="low", weight=0)
    words = tell(lanes, worker, "lane_weight", lane="low", weight="heavy")
    nothing = tell(lanes, worker, "lane_weight", lane="low")
    nobody = tell(lanes, worker, "lane_pause", lane="bulk")
    nobody_again = tell(lanes, worker, "lane_resume", lane="bulk")

    assert "no lane 'bulk' here; known are critical, normal, low" in unknown["error"]
    assert "weight must be above 0" in zero["error"]
    assert "weight must be above 0, not 'heavy'" in words["error"]
    assert "which weight for lane 'low'?" in nothing["error"]
    assert "no lane 'bulk' here" in nobody["error"]
    assert "no lane 'bulk' here" in nobody_again["error"]
    assert report(lanes, worker)["lanes"]["low"]["weight"] == 1


def test_inspect_lanes_says_what_runs_and_what_was_served(lanes: LaneRun) -> None:
    lanes.configure({"critical": {"weight": 10, "reserve": 1}, "low": 1})
    worker = lanes.worker("critical", "low", concurrency=2)
    lanes.send("critical", 30)
    lanes.effects.wait_count("critical", 30)
    lanes.send("low", 5, busy_s=120)
    lanes.effects.wait_count("low", 1)

    said = report(lanes, worker)

    assert said["slots"] == 2
    assert said["lanes"]["critical"]["started_last_minute"] == 30
    assert said["lanes"]["critical"]["reserve"] == 1
    assert said["lanes"]["low"]["running"] == 1


def test_a_worker_with_lanes_tells_its_settings_and_statistics(lanes: LaneRun) -> None:
    """``inspect stats`` sends the transport's options, in which the order of the lanes stands."""
    lanes.configure()
    worker = lanes.worker()
    assert lanes.module is not None
    inspect = lanes.module.app.control.inspect([worker.hostname], timeout=3, limit=1)

    stats = wait_until(inspect.stats, what="an answer")

    assert stats[worker.hostname]["pool"]
    assert inspect.conf()[worker.hostname]


def test_a_job_that_goes_on_after_its_soft_time_limit_keeps_its_process(lanes: LaneRun) -> None:
    module = lanes.configure()
    worker = lanes.worker(concurrency=1)
    module.stubborn.apply_async(("low",), queue="low")
    lanes.effects.wait_count("low:soft limit", 1)
    lanes.send("critical", 1)

    said = report(lanes, worker)

    assert said["lanes"]["low"]["running"] == 1
    assert lanes.effects.count("critical") == 0
    lanes.effects.wait_count("low:end", 1)
    lanes.effects.wait_count("critical", 1)
