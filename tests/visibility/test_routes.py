"""What comes back goes where it belongs: exchanges, priorities, prefixes, and none at all (C23)."""

from __future__ import annotations

import json

from tests.support.waiting import wait_until
from tests.visibility.conftest import APP, HOUR


def test_a_topic_message_is_found_a_queue_by_a_worker_that_never_declared_the_exchange(
    kept, effects, start_worker
):
    app = kept(TEST_OPTIONS=HOUR)
    victim = start_worker(APP, queues=["topical"])
    app.work.apply_async(("job", 60), queue=app.TOPICAL, routing_key="news.today")
    effects.wait_count("job:start", 1)
    sweeper = start_worker(APP, queues=["another"])

    victim.kill_tree()
    sweeper.wait_log("taking over 1 messages")
    start_worker(APP, queues=["topical"])

    effects.wait_count("job:start", 2)


def test_a_message_without_a_queue_is_kept_until_there_is_one(
    kept, effects, start_worker, redis_server
):  # C23
    app = kept(TEST_OPTIONS=HOUR)
    victim = start_worker(APP, queues=["topical"])
    app.work.apply_async(("job", 60), queue=app.TOPICAL, routing_key="news.today")
    effects.wait_count("job:start", 1)
    victim.kill_tree()
    with redis_server.client() as client:
        client.delete("_kombu.binding.topics", "_kombu.binding_permanent.topics")

        sweeper = start_worker(APP, queues=["another"])
        sweeper.wait_log("no queue is bound")
        assert client.hlen("unacked") == 1

    start_worker(APP, queues=["topical"])  # declares the binding again
    effects.wait_count("job:start", 2)


def test_a_global_prefix_and_priorities_are_kept(kept, effects, start_worker, redis_server):
    options = {**json.loads(HOUR), "global_keyprefix": "shop:", "priority_steps": [0, 5]}
    app = kept(TEST_OPTIONS=json.dumps(options))
    victim = start_worker(APP)
    app.work.apply_async(("job", 60), priority=7)
    effects.wait_count("job:start", 1)
    victim.kill_tree()

    start_worker(APP, queues=["another"])

    with redis_server.client() as client:
        wait_until(lambda: client.llen("shop:celery\x06\x165") == 1, what="the message's return")
        strangers = [key for key in client.keys("*") if not key.startswith(b"shop:")]
    assert strangers == []


def test_a_rejected_message_goes_to_the_back_of_its_queue(
    kept, effects, start_worker, redis_server
):
    app = kept(TEST_OPTIONS=HOUR)
    app.refuse.delay("no", 2)
    for number in range(3):
        app.note.delay(f"n{number}")

    start_worker(APP)

    effects.wait_count("no:taken", 1)
    assert effects.keys() == ["no", "n0", "n1", "n2", "no", "no:taken"]
    with redis_server.client() as client:
        wait_until(lambda: not client.exists("unacked"), what="the acks")
