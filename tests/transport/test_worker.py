"""Real Celery workers on the transport: what they run, and what is left in the broker."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until
from tests.transport.conftest import APP


def nothing_left(client) -> bool:
    """No entry in any stream, nothing delayed."""
    streams = [k for k in client.keys("rs:*") if client.type(k) == b"stream"]
    return not any(client.xlen(k) for k in streams) and not client.keys("rs:*:d")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_every_pool_runs_each_task_once_and_leaves_nothing(
    pool, load_streams_app, effects, start_worker, redis_server
):
    app = load_streams_app()
    worker = start_worker(f"{APP}:app", pool=pool, concurrency=2)
    for number in range(60):
        app.effect.delay(f"k{number}")

    effects.wait_for(lambda it: len(set(it.keys())) == 60)

    with redis_server.client() as client:
        wait_until(lambda: nothing_left(client), what="an empty broker")
    worker.term()
    assert worker.wait_exit() == 0
    assert sorted(effects.keys()) == sorted(f"k{number}" for number in range(60))
    with redis_server.client() as client:
        assert client.zcard("rs:leases") == 0


def test_a_killed_workers_messages_are_taken_over_within_the_lease_and_a_second(
    load_streams_app, effects, start_worker
):
    app = load_streams_app()
    first = start_worker(f"{APP}:app")
    second = start_worker(f"{APP}:app", queues=["elsewhere"])
    app.slow.delay("long", 60)
    effects.wait_count("long:start", 1)

    first.kill_tree()
    second.close()
    third = start_worker(f"{APP}:app")
    effects.wait_count("long:start", 2)

    assert third.children()


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_free_place_takes_what_comes_while_all_others_are_busy(
    pool, load_streams_app, effects, start_worker
):
    """C30: a worker that prefetches as much as it can run asks for one message as for many."""
    app = load_streams_app(conf={"task_ignore_result": True})
    start_worker(f"{APP}:app", pool=pool, concurrency=8)
    for number in range(7):
        app.slow.delay(f"long{number}", 15)
    effects.wait_for(lambda it: all(it.count(f"long{n}:start") for n in range(7)))

    app.effect.delay("short")

    effects.wait_count("short", 1)
    assert not any(effects.count(f"long{n}:end") for n in range(7))


def test_a_wait_of_an_idle_worker_is_no_half_open_connection(
    load_streams_app, effects, start_worker, redis_server
):
    """Whatever kombu's own interval for looking at its connections is."""
    app = load_streams_app(options={"health_check_interval": 1, "block_s": 4, "lease_s": 30})
    worker = start_worker(f"{APP}:app")
    app.effect.delay("warm")
    effects.wait_count("warm", 1)

    with redis_server.client() as client:

        def waits() -> int:
            return client.info("commandstats").get("cmdstat_blpop", {}).get("calls", 0)

        first = waits()
        wait_until(lambda: waits() >= first + 6, what="some idle rounds")

    assert "dropping stale connection" not in worker.log_text()
