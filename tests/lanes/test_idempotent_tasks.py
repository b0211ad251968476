"""Lanes of idempotent tasks: nothing to install, and the lane is kept by retries."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import pytest

from celery_idem.core.errors import ConfigError
from tests.support.effects import Effects
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, Worker

APP = "tests.apps.lanes_idem:app"
LANES = ["critical", "normal", "low"]


@pytest.fixture
def module(redis_url: str, effects: Effects, load_app: Callable[..., ModuleType]) -> ModuleType:
    return load_app("tests.apps.lanes_idem", TEST_BROKER=redis_url)


def test_a_worker_serves_the_setting_by_weight_without_any_set_up(
    module: ModuleType, effects: Effects, start_worker: Callable[..., Worker]
) -> None:
    for lane in LANES:
        for number in range(130):
            module.pay.apply_async((f"{lane}-{number}",), {"busy_s": 0.004}, lane=lane)

    start_worker(APP, queues=LANES, concurrency=2)
    effects.wait_for(lambda it: len(it.lines()) >= 320, 60, "160 runs")

    names = [line["key"] for line in effects.lines()]
    served = Counter([name for name in names if name.startswith("queue:")][:160])
    assert abs(served["queue:critical"] - 100) <= 3
    assert abs(served["queue:normal"] - 50) <= 3
    assert abs(served["queue:low"] - 10) <= 3


def test_the_tasks_lane_is_the_default_and_the_calls_lane_is_kept_by_its_retry(
    module: ModuleType, effects: Effects, start_worker: Callable[..., Worker]
) -> None:
    module.pay.delay("a", fail=True)
    module.pay.apply_async(("b",), {"fail": True}, lane="low")

    start_worker(APP, queues=LANES, concurrency=2)
    effects.wait_count("a", 2)
    effects.wait_count("b", 2)

    assert [line["queue"] for line in effects.lines("a")] == ["critical", "critical"]
    assert [line["queue"] for line in effects.lines("b")] == ["low", "low"]


def test_an_unknown_lane_is_an_error_before_anything_is_sent(module: ModuleType) -> None:
    with pytest.raises(ConfigError, match="no lane 'critcal'; did you mean 'critical'"):
        module.pay.apply_async(("c",), lane="critcal")

    with module.app.connection_for_read() as connection:
        assert connection.default_channel.client.dbsize() == 0


def test_lanes_are_changed_from_the_command_line(
    module: ModuleType, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker(APP, queues=LANES, concurrency=1)

    good = control("lane_weight", "critical", "20", worker)
    bad = control("lane_weight", "critical", "heavy", worker)

    assert "lane 'critical' has weight 20 until this worker restarts" in good
    assert "weight must be above 0, not 'heavy'" in bad


def control(command: str, lane: str, weight: str, worker: Worker) -> str:
    argv = [
        sys.executable, "-m", "celery", "-A", APP, "control",
        "--destination", worker.hostname, "--timeout", "20", command, lane, weight,
    ]  # fmt: skip
    outcome = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=90)
    return outcome.stdout + outcome.stderr


def test_queues_for_replies_are_no_lanes(
    module: ModuleType, start_worker: Callable[..., Worker]
) -> None:
    start_worker(APP, queues=LANES, concurrency=1)  # so that the next has whom to ask at its start
    worker = start_worker(APP, queues=LANES, concurrency=1, mingle=True)

    inspect = module.app.control.inspect([worker.hostname], timeout=3, limit=1)
    said = wait_until(lambda: inspect._request("lanes"), what="an answer")[worker.hostname]

    assert list(said["lanes"]) == LANES
    assert "is no lane" not in worker.log_text()
