"""``celery idem lanes`` against real brokers and workers."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_idem.core.errors import IdemError
from celery_idem.lanes.status import queue_state
from tests.lanes.conftest import APP, LaneRun
from tests.support.processes import guarded
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, Worker


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
    assert "order weighted, by messages; 1 worker answered" in table.stdout


def seen() -> dict[str, Any]:
    """The lanes as JSON, by name."""
    outcome = run("--json", "--timeout", "5")
    assert outcome.returncode == 0, outcome.stderr
    return {lane["name"]: lane for lane in json.loads(outcome.stdout)["lanes"]}


def cell(text: str, lane: str, column: str) -> str:
    """What stands in the table."""
    head, *rows = (re.split(r" {2,}", line) for line in text.splitlines())
    return next(row for row in rows if row[0] == lane)[head.index(column)]


def tell(lanes: LaneRun, *workers: Worker, command: str, **arguments: Any) -> None:
    assert lanes.module is not None
    names = [worker.hostname for worker in workers]
    control = lanes.module.app.control
    replies: list[Any] = []

    def all_answered() -> bool:  # one that is ready may hear it a moment later only
        replies[:] = control.broadcast(
            command, arguments, names, reply=True, timeout=3, limit=len(names)
        )
        return len(replies) == len(names)

    wait_until(all_answered, what=f"{len(names)} answers to {command}")
    assert all("ok" in answer for reply in replies for answer in reply.values()), replies


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_the_weight_that_workers_go_by_is_shown_and_not_only_that_of_the_settings(
    lanes: LaneRun,
) -> None:
    lanes.configure()
    one, other = lanes.worker(concurrency=2), lanes.worker("critical", "low", concurrency=2)

    tell(lanes, one, other, command="lane_weight", lane="critical", weight=20)
    tell(lanes, one, command="lane_weight", lane="low", weight=3)
    tell(lanes, one, command="lane_pause", lane="normal")
    found, table = seen(), run("--timeout", "5").stdout

    assert found["critical"]["weight"] == 10
    assert found["critical"]["weights"] == {one.hostname: 20, other.hostname: 20}
    assert found["critical"]["note"] == "10 in the settings"
    # on two processes 3, on two 1: 2 beside 20, and the paused lane is nothing
    assert found["critical"]["ideal"] == pytest.approx(20 / 22)
    assert found["low"]["ideal"] == pytest.approx(2 / 22)
    assert f"3 on {one.hostname}" in found["low"]["note"]
    assert f"1 on {other.hostname}" in found["low"]["note"]
    assert "1 in the settings" in found["low"]["note"]
    assert found["normal"]["note"] == "paused on 1 of 1"
    assert found["normal"]["ideal"] == 0
    assert [cell(table, it, "weight") for it in ("critical", "normal", "low")] == ["20", "5", "1–3"]
    assert [cell(table, it, "ideal") for it in ("critical", "normal", "low")] == [
        "90.9%", "0.0%", "9.1%",
    ]  # fmt: skip


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_what_is_delayed_in_a_worker_is_shown(lanes: LaneRun) -> None:
    lanes.configure()
    lanes.worker()
    lanes.send("low", 2, countdown=600)
    lanes.send("critical", 1)
    lanes.effects.wait_count("critical", 1)

    wait_until(lambda: seen()["low"]["delayed"] == 2, 60, "two delayed messages")

    assert cell(run("--timeout", "5").stdout, "low", "delayed") == "2"


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
    watching = subprocess.Popen(
        guarded(command), cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs
    )
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


@pytest.mark.parametrize("scheme", ["redis", "redis-streams"])
def test_a_broker_that_refuses_to_answer_is_not_an_empty_queue(
    redis_server: RedisServer, scheme: str
) -> None:
    with redis_server.client() as client:
        client.lpush("low", "a job")
        rights = ["on", ">word", "~*", "&*", "+@all", "-llen", "-evalsha"]
        client.execute_command("ACL", "SETUSER", "bob", *rights)
    url = redis_server.url().replace("redis://", f"{scheme}://bob:word@", 1)

    refusal = pytest.raises(IdemError, match=r"tells nothing of queue 'low'.* no permissions")
    with Celery(broker=url, set_as_current=False).connection_for_read() as connection, refusal:
        queue_state(connection, "low")
