"""``control.cancel_consumer`` and ``add_consumer`` on a worker that serves lanes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lanes.conftest import LaneRun
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.rabbitmq


def consumed(lanes: LaneRun, worker: Worker) -> set[str]:
    assert lanes.module is not None
    inspect = lanes.module.app.control.inspect([worker.hostname], timeout=5, limit=1)
    said: Any = wait_until(inspect.active_queues, what="an answer")
    return {queue["name"] for queue in said[worker.hostname]}


@pytest.mark.parametrize("broker", ["rabbitmq", "quorum"], indirect=True)
def test_a_queue_that_was_cancelled_while_its_tap_was_closed_stays_so(lanes: LaneRun) -> None:
    """A busy worker holds nothing, and opens its taps again when it has room: not this one."""
    module = lanes.configure()
    worker = lanes.worker(concurrency=1)
    lanes.send("critical", 1, busy_s=6)
    lanes.effects.wait_count("critical", 1)
    wait_until(lambda: "low" not in consumed(lanes, worker), what="a closed tap")

    module.app.control.cancel_consumer("low", destination=[worker.hostname], reply=True)
    lanes.send("low", 1)
    lanes.send("critical", 30, busy_s=0.05)
    lanes.effects.wait_count("critical", 31)
    before = lanes.effects.count("low")
    module.app.control.add_consumer("low", destination=[worker.hostname], reply=True)

    assert before == 0
    lanes.effects.wait_count("low", 1)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_lane_that_is_consumed_later_is_ranked_as_it_is_written(
    lanes: LaneRun, tmp_path: Path
) -> None:
    module = lanes.configure(lane_order="strict")
    gate = tmp_path / "gate"
    worker = lanes.worker("low", concurrency=1)
    module.held.apply_async(("held", str(gate)), queue="low")
    lanes.effects.wait_count("held", 1)

    module.app.control.add_consumer("critical", destination=[worker.hostname], reply=True)
    lanes.send("low", 5)
    lanes.send("critical", 5)
    gate.touch()
    runs = [line["key"] for line in lanes.first(12)[2:]]

    assert runs == ["critical"] * 5 + ["low"] * 5
