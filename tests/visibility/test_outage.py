"""The broker goes away and comes back: the worker lives on, nothing runs twice, nothing is lost.

Stock celery 5.7 ends (return code 1) in about half of such outages, runs the jobs twice in the
others, and hangs for good on a half-open connection.
"""

from __future__ import annotations

import json
import time

import celery
import pytest

from tests.support.waiting import wait_until
from tests.visibility.conftest import APP, HOUR

#: remote control listens on a connection of its own; stock celery dies when that one ends first
CONF = json.dumps({"worker_enable_remote_control": True, "worker_prefetch_multiplier": 4})
JOBS = [f"n{number}" for number in range(8)]
RUNS = 10


@pytest.fixture
def busy_worker(redis_server, effects, load_app, start_worker, fault_proxy):
    """Factory of a worker behind a proxy, with all jobs fetched, half of them running."""

    def make(pool: str = "prefork", lease_s: str = "20"):
        proxy = fault_proxy(redis_server.address)
        app = load_app(
            "tests.apps.kept",
            TEST_BROKER=proxy.url(),
            TEST_OPTIONS=HOUR,
            TEST_CONF=CONF,
            TEST_LEASE_S=lease_s,
        )
        worker = start_worker(APP, pool=pool, concurrency=4)
        for key in JOBS:
            app.work.delay(key, 2)
        with redis_server.client() as client:
            wait_until(lambda: client.hlen("unacked") == len(JOBS), what="all jobs fetched")
        effects.wait_for(lambda it: len(it.keys()) >= 4, what="four starts")
        return worker, proxy

    return make


def all_done_once(effects, redis_server, worker) -> None:
    effects.wait_for(
        lambda it: worker.returncode is not None or all(it.count(f"{k}:end") for k in JOBS),
        60,
        "all jobs",
    )
    assert worker.returncode is None, worker.log_text()[-3000:]
    with redis_server.client() as client:
        wait_until(lambda: not client.hlen("unacked") and not client.llen("celery"), 60, "acks")
    starts = [effects.count(f"{key}:start") for key in JOBS]
    if celery.VERSION[:3] >= (5, 6, 3):  # older ones forget what runs, so it must start again
        assert starts == [1] * len(JOBS)


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.parametrize("run", range(RUNS))
def test_three_seconds_without_a_broker(run, busy_worker, effects, redis_server):
    worker, proxy = busy_worker()

    proxy.cut()
    back_at = time.monotonic() + 3  # four jobs end meanwhile: their acks find no broker
    wait_until(lambda: time.monotonic() > back_at, what="the end of the outage")
    proxy.heal()

    all_done_once(effects, redis_server, worker)
    worker.term()
    assert worker.wait_exit() == 0


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_cut_while_jobs_run_starts_none_of_them_again(pool, busy_worker, effects, redis_server):
    worker, proxy = busy_worker(pool)

    proxy.cut()
    effects.wait_for(lambda it: sum(it.count(f"{key}:end") for key in JOBS) >= 4, what="four ends")
    proxy.heal()

    all_done_once(effects, redis_server, worker)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_half_open_connection_is_given_up_and_the_worker_goes_on(
    busy_worker, effects, redis_server
):
    worker, proxy = busy_worker(lease_s="60")

    proxy.set(blackhole="down")
    effects.wait_for(lambda it: sum(it.count(f"{key}:end") for key in JOBS) >= 4, what="four ends")
    proxy.heal()

    all_done_once(effects, redis_server, worker)
    worker.term()
    assert worker.wait_exit() == 0


def test_a_killed_server_that_comes_back(busy_worker, effects, redis_server):
    worker, _ = busy_worker()

    redis_server.kill()
    effects.wait_for(lambda it: sum(it.count(f"{key}:end") for key in JOBS) >= 4, what="four ends")
    redis_server.start()

    all_done_once(effects, redis_server, worker)


def test_an_outage_longer_than_the_lease_makes_no_living_worker_dead(
    busy_worker, effects, redis_server, start_worker, monkeypatch
):
    worker, _ = busy_worker(lease_s="3")
    monkeypatch.setenv("TEST_BROKER", redis_server.url())
    start_worker(APP, queues=["another"])

    redis_server.pause()
    back_at = time.monotonic() + 5
    wait_until(lambda: time.monotonic() > back_at, what="an end later than the lease's")
    redis_server.cont()

    all_done_once(effects, redis_server, worker)
    assert "were given to other workers" not in worker.log_text()


def test_a_worker_can_be_stopped_while_the_broker_is_away(busy_worker, effects, redis_server):
    worker, proxy = busy_worker()
    proxy.cut()
    worker.wait_log("Trying to re-establish")

    worker.term()

    worker.wait_exit(60)
    with redis_server.client() as client:
        finished = sum(bool(effects.count(f"{key}:end")) for key in JOBS)
        assert client.hlen("unacked") + client.llen("celery") + finished >= len(JOBS)


def test_an_idle_worker_survives_a_master_that_becomes_a_replica(
    kept, effects, start_worker, redis_server, make_redis
):
    """C64: an orderly failover. The server ends every wait with UNBLOCKED."""
    other = make_redis("other")
    app = kept()
    worker = start_worker(APP)
    app.note.delay("before")
    effects.wait_count("before", 1)
    with redis_server.client() as client:
        client.replicaof(*other.address)
        worker.wait_log("Connection to broker lost|Trying to re-establish|Cannot connect", 60)
        client.replicaof("NO", "ONE")
    app.note.delay("after")

    effects.wait_count("after", 1, 60)
    assert worker.returncode is None
