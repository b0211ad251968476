"""ETA, countdown and retries wait in the broker, by the server's clock."""

from __future__ import annotations

import time

import pytest

from tests.support.waiting import wait_until
from tests.transport.conftest import APP


def test_a_delayed_task_runs_at_its_time_on_an_idle_worker(
    load_streams_app, effects, start_worker, redis_server
):
    app = load_streams_app()
    start_worker(f"{APP}:app")
    due = time.time() + 3

    app.effect.apply_async(("later",), countdown=3)

    with redis_server.client() as client:
        assert client.zcard("rs:{celery}:d") == 1
        assert client.xlen("rs:{celery}:0") == 0
    effects.wait_count("later", 1)
    ran = effects.lines("later")[0]["wall"]
    assert ran >= due - 0.01
    assert effects.count("later") == 1


def test_an_earlier_task_wakes_those_who_wait_for_a_later_one(
    load_streams_app, effects, start_worker
):
    app = load_streams_app(options={"lease_s": 60})
    start_worker(f"{APP}:app")
    app.effect.apply_async(("far",), countdown=3600)
    sent = time.time()

    app.effect.apply_async(("near",), countdown=1)

    effects.wait_count("near", 1)
    # far below the keeper's own rhythm (10 s): it was woken
    assert effects.lines("near")[0]["wall"] - sent < 6


def test_a_worker_holds_no_future_messages_and_its_prefetch_stays_its_own(
    load_streams_app, effects, start_worker, redis_server
):
    """C31"""
    app = load_streams_app()
    start_worker(f"{APP}:app")
    for number in range(300):
        app.effect.apply_async((f"far{number}",), countdown=600)

    app.effect.delay("now")

    effects.wait_count("now", 1)
    with redis_server.client() as client:
        assert client.zcard("rs:{celery}:d") == 300
        wait_until(lambda: client.xlen("rs:{celery}:0") == 0, what="the ack")
    assert effects.keys() == ["now"]


@pytest.mark.slow
def test_an_eta_beyond_the_lease_runs_once(load_streams_app, effects, start_worker, redis_server):
    """C01: longer than any timeout, with two workers."""
    app = load_streams_app(options={"lease_s": 2}, conf={"task_acks_late": False})
    for _ in range(2):
        start_worker(f"{APP}:app", pool="solo")

    due = time.time() + 8
    app.effect.apply_async(("k",), countdown=8)

    effects.wait_count("k", 1)
    assert effects.lines("k")[0]["wall"] >= due - 0.01
    with redis_server.client() as client:
        wait_until(lambda: client.xlen("rs:{celery}:0") == 0, what="the ack")
        assert client.zcard("rs:{celery}:d") == 0
    assert effects.count("k") == 1


@pytest.mark.slow
def test_a_restart_moves_no_delayed_task_and_loses_none(
    load_streams_app, effects, start_worker, redis_server
):
    """C17: SIGTERM, and SIGKILL soon after it, again and again."""
    app = load_streams_app()
    worker = start_worker(f"{APP}:app", concurrency=2)
    due = {}
    for number in range(600):
        due[f"k{number}"] = time.time() + 4 + number % 8
        app.effect.apply_async((f"k{number}",), countdown=4 + number % 8)

    for _ in range(4):
        seen = len(effects.keys())
        effects.wait_for(lambda it, seen=seen: len(it.keys()) > seen, 60)
        worker.term()
        worker.kill_tree()
        worker.start()

    effects.wait_for(lambda it: len(set(it.keys())) == 600, 90)
    early = [line for line in effects.lines() if line["wall"] < due[line["key"]] - 0.01]
    assert early == []


def test_a_retry_waits_in_the_broker(load_streams_app, effects, start_worker):
    app = load_streams_app()
    start_worker(f"{APP}:app")

    app.retrying.delay("r", 2, 0.5)

    effects.wait_count("r", 1)
    tries = effects.lines("r:try")
    assert [line["retries"] for line in tries] == [0, 1, 2]
    assert tries[1]["wall"] - tries[0]["wall"] >= 0.5


@pytest.mark.parametrize("skew_s", [-300, 300])
def test_a_workers_wrong_clock_makes_nothing_early_late_or_twice(
    skew_s, load_streams_app, effects, start_worker, clock_skew, redis_server
):
    """C62: its clock is five minutes off; delays and leases are judged by the server's."""
    clock_skew.set(skew_s)
    app = load_streams_app()
    skewed = start_worker(f"{APP}:app", env=clock_skew.env)
    start_worker(f"{APP}:app")
    sent = time.monotonic()
    for number in range(10):
        app.effect.apply_async((f"d{number}",), countdown=2)
    app.slow.delay("long", 7)  # more than two leases

    effects.wait_for(lambda it: all(it.count(f"d{n}") for n in range(10)))
    effects.wait_count("long:end", 1)

    # monotonic clocks are the machine's, whatever the wall clock says
    late = [line["monotonic"] - sent for n in range(10) for line in effects.lines(f"d{n}")]
    assert min(late) >= 1.99
    assert max(late) < 7
    assert len(late) == 10
    assert effects.count("long:start") == 1
    assert skewed.returncode is None
