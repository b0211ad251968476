"""Redis is away, comes back with its file, or has forgotten: what holds and what does not."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from celery_idem.core.record import State
from tests.faults.conftest import APP, DEADLINE_S, record_of
from tests.support.effects import Effects
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.workers import IMPATIENT_RESULTS


def away(server: RedisServer, seconds: float, while_away: Any = None) -> None:
    """Kill the server, and start it again from its file once so many seconds are over."""
    end = time.monotonic() + seconds
    server.kill()
    if while_away is not None:
        while_away()
    wait_until(lambda: time.monotonic() >= end, what="the end of the outage")
    server.start()


@pytest.mark.parametrize(
    ("pool", "ends"),
    [("prefork", "in the outage"), ("prefork", "after it"), ("threads", "in the outage")],
)
def test_a_job_that_runs_through_an_outage_is_done_once(
    load: Any,
    start_worker: Any,
    effects: Effects,
    gate: Any,
    redis_server: RedisServer,
    pool: str,
    ends: str,
) -> None:
    """Broker, store and backend are one Redis that is away for two leases."""
    tasks = load()
    worker = start_worker(APP, pool=pool)
    result = tasks.work.delay("out", str(gate()))
    effects.wait_count("start:out", 1)

    def end_of_body() -> None:
        gate(1).touch()
        effects.wait_count("out", 1)

    away(redis_server, 3.0, end_of_body if ends == "in the outage" else None)
    gate(1).touch()

    assert result.get(timeout=DEADLINE_S).startswith("out by")
    assert tasks.work.delay("next").get(timeout=DEADLINE_S).startswith("next by")
    assert worker.returncode is None, "the worker lives through it"
    assert effects.count("start:out") == 1
    assert effects.count("out") == 1
    assert record_of(tasks, "faulty.work:work:out").state is State.DONE


def test_what_was_done_is_done_after_the_server_was_killed(
    load: Any, start_worker: Any, effects: Effects, redis_server: RedisServer
) -> None:
    """With appendonly and fsync always."""
    tasks = load()
    start_worker(APP)
    first = tasks.work.delay("kept").get(timeout=DEADLINE_S)

    redis_server.kill()
    redis_server.start()

    assert tasks.work.delay("kept").get(timeout=DEADLINE_S) == first
    assert effects.count("kept") == 1


def test_a_running_job_keeps_its_key_although_the_store_forgot_everything(
    load: Any, start_worker: Any, effects: Effects, gate: Any, redis_server: RedisServer
) -> None:
    """FLUSHALL while a body runs: the holder's next renewal puts the claim back."""
    tasks = load()
    start_worker(APP, concurrency=2)
    result = tasks.work.delay("flushed", str(gate()))
    effects.wait_count("start:flushed", 1)

    with redis_server.client() as client:
        client.flushall()
        wait_until(
            lambda: client.exists("idem:{faulty.work:work:flushed}"), what="the claim to be back"
        )
    duplicate = tasks.work.delay("flushed", str(gate()))
    gate(1).touch()

    value = result.get(timeout=DEADLINE_S)
    assert duplicate.get(timeout=DEADLINE_S) == value
    assert effects.count("start:flushed") == 1


def test_what_was_done_is_forgotten_with_the_store(
    load: Any, start_worker: Any, effects: Effects, redis_server: RedisServer
) -> None:
    """What does not hold (docs/guarantees.md): a store that is emptied forgets done records."""
    tasks = load()
    start_worker(APP)
    tasks.work.delay("gone").get(timeout=DEADLINE_S)

    with redis_server.client() as client:
        client.flushall()
    tasks.work.delay("gone").get(timeout=DEADLINE_S)

    assert effects.count("gone") == 2


# --- the store alone is away; the broker is there -----------------------------------------------


@pytest.mark.parametrize("patience_s", [0.2, 60])
def test_a_job_that_can_not_be_claimed_waits_for_the_store(
    load: Any, start_worker: Any, effects: Effects, make_redis: Any, patience_s: float
) -> None:
    store = make_redis("store")
    tasks = load(idem={"store": store.url(), "store_patience_s": patience_s})
    worker = start_worker(APP)
    store.kill()

    result = tasks.work.delay("claim")
    worker.wait_log(
        r"the message goes back" if patience_s < 1 else r"work\[.*\] received", DEADLINE_S
    )
    store.start()

    assert result.get(timeout=DEADLINE_S).startswith("claim by")
    assert effects.count("claim") == 1


@pytest.mark.parametrize("patience_s", [0.2, 60])
def test_a_job_that_can_not_be_recorded_is_not_lost(
    load: Any, start_worker: Any, effects: Effects, gate: Any, make_redis: Any, patience_s: float
) -> None:
    """Within the worker's patience it is done once. When that is over, the message goes back and
    the body runs again: an effect and its record are two things."""
    store = make_redis("store")
    tasks = load(idem={"store": store.url(), "store_patience_s": patience_s})
    worker = start_worker(APP)
    result = tasks.work.delay("complete", str(gate()))
    effects.wait_count("start:complete", 1)
    store.kill()
    gate(1).touch()
    gate(2).touch()
    effects.wait_count("complete", 1)

    if patience_s < 1:
        worker.wait_log("the message goes back", DEADLINE_S)
    store.start()

    assert result.get(timeout=DEADLINE_S).startswith("complete by")
    assert effects.count("complete") == (2 if patience_s < 1 else 1)
    assert record_of(tasks, "faulty.work:work:complete").state is State.DONE


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_lives_through_a_server_that_refuses_for_now(
    load: Any, start_worker: Any, effects: Effects, gate: Any, redis_server: RedisServer, pool: str
) -> None:
    """Found by chaos on kombu's own transport: a full disk (MISCONF) ended the worker. Here the
    server refuses because it has no replica; what was popped meanwhile goes back."""
    tasks = load()
    worker = start_worker(APP, pool=pool, concurrency=2)
    tasks.work.delay("through", str(gate()))
    effects.wait_count("start:through", 1, DEADLINE_S)

    with redis_server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        worker.wait_log("Connection to broker lost|Trying to re-establish|Cannot connect", 60)
        client.config_set("min-replicas-to-write", 0)
    gate(1).touch()

    assert tasks.work.delay("next").get(timeout=DEADLINE_S).startswith("next by")
    effects.wait_count("through", 1, DEADLINE_S)
    assert effects.count("start:through") == 1
    assert worker.returncode is None


POOLS = ["prefork", "threads", "gevent", "eventlet", "solo"]


@pytest.fixture(params=POOLS)
def with_a_way_to_results(
    request: Any, load: Any, start_worker: Any, redis_server: RedisServer, fault_proxy: Any
) -> Any:
    """The way from a worker of one job at a time to its results, the worker, and tasks to send."""
    results = fault_proxy(redis_server.address)
    load(TEST_BACKEND=results.url(1), TEST_CONF=json.dumps(IMPATIENT_RESULTS))
    worker = start_worker(APP, pool=request.param, concurrency=1)
    return results, worker, load(TEST_BACKEND=redis_server.url(1))


def test_a_result_that_could_not_be_stored_is_reported_when_it_can(
    with_a_way_to_results: Any, effects: Effects, gate: Any
) -> None:
    """In all pools but prefork the message stayed with its worker, unacked, for ever."""
    results, worker, tasks = with_a_way_to_results
    result = tasks.work.delay("mute", str(gate()))
    effects.wait_count("start:mute", 1)

    results.cut()
    gate(1).touch()
    worker.wait_log("its result could not be reported", DEADLINE_S)
    results.heal()

    assert result.get(timeout=DEADLINE_S).startswith("mute by")
    assert effects.count("start:mute") == 1


def test_a_plain_job_whose_result_could_not_be_stored_takes_no_place_in_the_prefetch(
    with_a_way_to_results: Any, effects: Effects, gate: Any, redis_server: RedisServer
) -> None:
    """Celery's own fault in all pools but prefork: each such job took one for ever."""
    results, _, tasks = with_a_way_to_results
    tasks.plain.delay("mute", str(gate()))
    effects.wait_count("start:mute", 1)

    results.cut()
    gate(1).touch()
    tasks.plain.delay("next")

    effects.wait_count("next", 1, DEADLINE_S)
    with redis_server.client() as client:
        wait_until(lambda: client.hlen("unacked") == 0, DEADLINE_S, what="both acks")
    assert effects.count("start:mute") == 1


@pytest.mark.parametrize("how", ["exit", "cancelled", "memory"])
@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet", "solo"])
def test_a_plain_job_that_ends_in_no_ordinary_error_is_acked_like_any_that_fails(
    load: Any, start_worker: Any, effects: Effects, redis_server: RedisServer, pool: str, how: str
) -> None:
    """Celery's own fault: it took a place in the prefetch for ever, or ended the worker."""
    tasks = load(TEST_CONF=json.dumps({"task_reject_on_worker_lost": True}))
    worker = start_worker(APP, pool=pool, concurrency=1)
    tasks.plainly_aborted.delay("aborted", how)
    tasks.plain.delay("next")

    effects.wait_count("next", 1, DEADLINE_S)
    with redis_server.client() as client:
        wait_until(lambda: client.hlen("unacked") == 0, DEADLINE_S, what="both acks")
    assert effects.count("start:aborted") == 1
    assert worker.returncode is None
