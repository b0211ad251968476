"""What a dead worker held comes back in time, once (S-V1, S-V2, C05, C17)."""

from __future__ import annotations

import base64
import json

import pytest

from tests.support.waiting import wait_until
from tests.support.workers import Worker
from tests.visibility.conftest import APP, HOUR

MANY = 3000


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent", "eventlet"])
def test_work_of_a_killed_worker_starts_again_on_an_idle_one(
    pool, kept, effects, start_worker
):  # C05
    app = kept(TEST_OPTIONS=HOUR)
    first = start_worker(APP, pool=pool)
    app.work.delay("job", 60)
    effects.wait_count("job:start", 1)
    start_worker(APP, pool=pool)

    first.kill_tree()

    effects.wait_count("job:start", 2)
    once, again = effects.lines("job:start")
    assert once["pid"] != again["pid"]
    assert (once["redelivered"], again["redelivered"]) == (False, True)


def test_the_only_worker_is_killed_and_started_again(kept, effects, start_worker):
    app = kept(TEST_OPTIONS=HOUR)
    worker = start_worker(APP)
    app.work.delay("job", 60)
    effects.wait_count("job:start", 1)

    worker.kill_tree()
    worker.start().wait_ready()

    effects.wait_count("job:start", 2)


@pytest.mark.slow
def test_the_timeline_of_the_article(kept, effects, start_worker, broker_keys):  # S-V2
    app = kept(TEST_OPTIONS=HOUR, TEST_LEASE_S="30")
    victim = start_worker(APP, env={"TEST_MARK": "first"})
    app.work.delay("job", 9)
    effects.wait_count("job:start", 1)
    start_worker(APP, env={"TEST_MARK": "second"})

    victim.kill_tree()
    effects.wait_count("job:end", 1, deadline_s=90)
    wait_until(lambda: "unacked" not in broker_keys(), what="the ack")

    first, second = effects.lines("job:start")
    assert (first["mark"], second["mark"]) == ("first", "second")
    # not before the lease is over; how long after, is the machine's affair
    assert second["monotonic"] - first["monotonic"] > 29
    assert effects.count("job:end") == 1


def hold_many(app, start_worker, client) -> Worker:
    """A worker that holds MANY messages whose time is far off."""
    with app.app.producer_pool.acquire(block=True) as producer:
        for number in range(MANY):
            app.early.apply_async((f"n{number}",), countdown=3600, producer=producer)
    worker = start_worker(APP, pool="solo")
    wait_until(lambda: client.hlen("unacked") == MANY, 60, "all of them held")
    return worker


def ids_waiting(client) -> list[str]:
    return [json.loads(item)["headers"]["id"] for item in client.lrange("celery", 0, -1)]


@pytest.mark.slow
def test_thousands_of_delayed_messages_of_a_killed_worker_come_back_once_each(
    kept, start_worker, redis_server
):
    app = kept(TEST_OPTIONS=HOUR)
    with redis_server.client() as client:
        victim = hold_many(app, start_worker, client)

        victim.kill_tree()
        start_worker(APP, queues=["another"])

        wait_until(lambda: client.hlen("unacked") == 0, what="all of them back")
        assert len(set(ids_waiting(client))) == len(ids_waiting(client)) == MANY


def test_an_orderly_end_puts_everything_back_and_leaves_nothing_of_ours(
    kept, effects, start_worker, redis_server, broker_keys
):
    app = kept(TEST_OPTIONS=HOUR)
    worker = start_worker(APP)
    for number in range(50):
        app.early.apply_async((f"n{number}",), countdown=3600)
    with redis_server.client() as client:
        wait_until(lambda: client.hlen("unacked") == 50, what="all of them held")

    worker.term()

    assert worker.wait_exit() == 0
    assert broker_keys() == {"celery": 50}


@pytest.mark.slow
def test_a_kill_in_the_middle_of_an_orderly_end_loses_nothing(
    kept, start_worker, redis_server
):  # C17
    app = kept(TEST_OPTIONS=HOUR)
    with redis_server.client() as client:
        worker = hold_many(app, start_worker, client)

        worker.term()
        wait_until(lambda: client.llen("celery") > 0, what="the first of them back")
        worker.kill_tree()
        start_worker(APP, queues=["another"])

        wait_until(lambda: client.hlen("unacked") == 0, what="all of them back")
        assert len(set(ids_waiting(client))) == len(ids_waiting(client)) == MANY


def test_what_a_killed_worker_had_fetched_comes_back_in_front_and_in_order(
    kept, effects, start_worker, redis_server
):
    app = kept(TEST_OPTIONS=HOUR, TEST_CONF='{"worker_prefetch_multiplier": 4}')
    worker = start_worker(APP)
    for key in "abcd":
        app.work.delay(key, 60)
    with redis_server.client() as client:
        wait_until(lambda: client.hlen("unacked") == 4, what="all of them held")
        worker.kill_tree()
        app.work.delay("z", 60)

        start_worker(APP, queues=["another"])

        wait_until(lambda: client.llen("celery") == 5, what="all of them back")
        waiting = [json.loads(item) for item in client.lrange("celery", 0, -1)]
    # kombu pops from the right
    keys = [json.loads(base64.b64decode(item["body"]))[0][0] for item in reversed(waiting)]
    assert keys == ["a", "b", "c", "d", "z"]
    redelivered = [item["headers"].get("redelivered", False) for item in reversed(waiting)]
    assert redelivered == [True, True, True, True, False]


def test_a_message_that_came_back_before_lets_the_others_pass(
    kept, effects, start_worker, redis_server
):
    app = kept(TEST_OPTIONS=HOUR)
    app.work.delay("pill", 60)
    with redis_server.client() as client:
        for times in (1, 2):
            worker = start_worker(APP)
            effects.wait_count("pill:start", times, deadline_s=60)
            worker.kill_tree()
        app.work.delay("other", 60)
        start_worker(APP, queues=["another"])

        wait_until(lambda: client.llen("celery") == 2, what="the pill's return")
        last_to_be_popped = json.loads(client.lindex("celery", 0))

    assert json.loads(base64.b64decode(last_to_be_popped["body"]))[0][0] == "pill"
