"""``celery idem lanes`` against real brokers and workers."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.lanes.conftest import APP, LaneRun
from tests.support.waiting import wait_until
from tests.support.workers import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "celery", "-A", APP, "idem", "lanes", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_depth_age_share_and_workers_are_shown(lanes: LaneRun) -> None:
    lanes.configure({"critical": {"weight": 10, "reserve": 1}, "normal": 5, "low": 1})
    lanes.worker("critical", "normal", concurrency=2)
    lanes.send("critical", 30)
    lanes.effects.wait_count("critical", 30)
    lanes.send("low", 7)

    outcome = run("--json", "--timeout", "5")
    table = run("--timeout", "5")

    data = {lane["name"]: lane for lane in json.loads(outcome.stdout)["lanes"]}
    assert data["critical"]["depth"] == 0
    assert data["critical"]["share"] == 1.0
    assert data["critical"]["served_last_minute"] == 30
    assert (data["critical"]["workers"], data["critical"]["slots"]) == (1, 2)
    assert data["critical"]["reserve"] == 1
    assert data["low"]["depth"] == 7
    assert data["low"]["workers"] == 0
    assert data["low"]["note"] == "no worker consumes it"
    assert (data["low"]["oldest_s"] is not None) == (lanes.broker == "redis")
    assert "no worker consumes it" in table.stdout
    assert "order weighted, by messages; 1 workers answered" in table.stdout


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.rabbitmq
def test_a_queue_that_does_not_exist_is_no_error(lanes: LaneRun) -> None:
    lanes.configure()

    outcome = run("--json", "--timeout", "0.2")

    assert outcome.returncode == 0, outcome.stderr
    depths = [lane["depth"] for lane in json.loads(outcome.stdout)["lanes"]]
    # an empty list is no key in Redis, so a missing queue is an empty one
    assert depths == ([0] * 3 if lanes.broker == "redis" else [None] * 3)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_an_app_without_lanes_is_told_how_to_set_them(lanes: LaneRun) -> None:
    lanes.configure({})

    outcome = run()

    assert outcome.returncode == 1
    assert "no lanes: set idem['lanes']" in outcome.stderr


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_watching_ends_cleanly_when_it_is_interrupted(lanes: LaneRun, options: list[str]) -> None:
    pytest.importorskip("rich")
    lanes.configure()
    command = [sys.executable, "-m", "celery", "-A", APP, "idem", "lanes", "--watch", "0.2",
               "--timeout", "0.2", *options]  # fmt: skip
    ours, theirs = pty.openpty()
    watching = subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = bytearray()

    def reads(text: bytes) -> Callable[[], bool]:
        def look() -> bool:
            with contextlib.suppress(OSError):  # its end of the terminal is closed
                if select.select([ours], [], [], 0)[0]:
                    said.extend(os.read(ours, 65536))
            return text in said

        return look

    try:
        wait_until(reads(b"low"), 60, lambda: f"a look at the lanes: {bytes(said)!r}")
        watching.send_signal(signal.SIGINT)

        def ended() -> bool:
            reads(b"")()  # or it would wait for room in the terminal
            return watching.poll() is not None

        wait_until(ended, 60, lambda: f"its end: {bytes(said)!r}")
        status = watching.returncode
    finally:
        watching.kill()
        os.close(ours)

    assert status == 0, bytes(said)
    assert b"Traceback" not in said
