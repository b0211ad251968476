"""S-P4: a queue in order of a score, with its three known faults mended."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from kombu import Connection, Producer, Queue

from celery_idem.core.errors import ConfigError
from celery_idem.transport.scored import reprioritise
from tests.support.waiting import wait_until
from tests.transport.conftest import APP, streams


@pytest.fixture
def connection(redis_url):
    with Connection(streams(redis_url), transport_options={"lease_s": 2}) as made:
        yield made


def scored(connection, name="s", **arguments) -> Queue:
    queue = Queue(name, queue_arguments={"x-queue-type": "scored", **arguments})
    queue = queue(connection.default_channel)
    queue.declare()
    return queue


def send(connection, queue, *scores, **options) -> None:
    producer = Producer(connection.default_channel)
    for number, score in enumerate(scores):
        name = f"id{number}"
        headers = {"id": name, "task": "t"}
        body = f"{score}/{number}"
        producer.publish(
            body, routing_key=queue.name, priority=score, headers=headers | options.get("more", {})
        )


def drain(queue) -> list[str]:
    got = []
    while (message := queue.get()) is not None:
        got.append(message.payload)
        message.ack()
    return got


def test_the_lowest_score_goes_first_and_equals_in_order_of_arrival(connection):
    queue = scored(connection)
    send(connection, queue, 5, 0.5, 5, -3, 0.5, 1000)

    assert queue.queue_declare(passive=True).message_count == 6

    assert drain(queue) == ["-3/3", "0.5/1", "0.5/4", "5/0", "5/2", "1000/5"]


def test_a_score_can_change_while_its_message_waits(connection):
    queue = scored(connection)
    send(connection, queue, 1, 2, 3)
    channel = connection.default_channel

    assert channel.reprioritise("s", "id2", 0)
    assert not channel.reprioritise("s", "unknown", 0)

    assert drain(queue) == ["3/2", "1/0", "2/1"]
    assert not channel.reprioritise("s", "id2", 0)


def test_waiting_is_worth_points(connection, redis_session_server):
    queue = scored(connection, **{"x-aging-rate": 10.0})
    send(connection, queue, 30)
    with redis_session_server.client() as client:
        [(first, score)] = client.zrange("rs:{s}:z", 0, -1, withscores=True)
        # as if it had been sent ten seconds earlier
        client.zadd("rs:{s}:z", {first: score - 100})

    send(connection, queue, 0)

    assert drain(queue) == ["30/0", "0/0"]


def test_nothing_is_left_behind(connection, redis_session_server):
    queue = scored(connection)
    send(connection, queue, 1, 2, 3)
    drain(queue)

    with redis_session_server.client() as client:
        assert client.exists("rs:{s}:z", "rs:{s}:b", "rs:{s}:i") == 0
        assert client.xlen("rs:{s}:0") == 0


def test_what_a_dead_consumer_held_comes_again_first(connection, redis_url):
    queue = scored(connection)
    send(connection, queue, 1, 2, 3)
    other = Connection(streams(redis_url), transport_options={"lease_s": 2})
    channel = other.default_channel
    held = Queue("s")(channel).get()
    assert held.payload == "1/0"
    channel._keeper.stop()  # as if its process were gone: nobody renews, nobody says good-bye

    def next_one():
        message = queue.get()
        return message and (message.ack(), message.payload)[1]

    assert next_one() == "2/1"
    assert wait_until(lambda: (p := next_one()) and p != "3/2" and p, what="the take-over") == "1/0"


def test_a_requeued_message_keeps_its_score(connection):
    queue = scored(connection)
    send(connection, queue, 5, 9)
    queue.get().requeue()
    send(connection, queue, 1)

    got: list[str] = []
    wait_until(lambda: got.extend(drain(queue)) or len(got) == 3, what="all three")

    assert got.index("9/1") >= 0
    assert set(got) == {"5/0", "9/1", "1/0"}


def test_workers_wait_for_a_scored_queue_without_polling_and_delays_count(
    load_streams_app, effects, start_worker
):
    app = load_streams_app()
    with app.app.connection_for_write() as connection:
        scored(connection, "celery")
    worker = start_worker(f"{APP}:app", concurrency=1, extra=["--prefetch-multiplier", "1"])
    app.slow.apply_async(("first", 2), priority=5)
    effects.wait_count("first:start", 1)
    for key, score in (("late", 50), ("soon", 1.5)):
        app.effect.apply_async((key,), priority=score)
    app.effect.apply_async(("delayed",), priority=0.5, countdown=0.2)
    sent = app.effect.apply_async(("raised",), priority=99)

    # two are in the worker already by the prefetch of one: the one that runs, and one at most
    assert reprioritise(app.app, "celery", sent.id, 0.1)

    effects.wait_for(lambda it: all(it.count(k) for k in ("late", "soon", "delayed", "raised")))
    order = [key for key in list(effects.keys()) if ":" not in key]
    assert order.index("raised") < order.index("delayed") < order.index("soon")
    assert worker.returncode is None


def test_odd_ids_and_scores_keep_no_delayed_message_from_anybody(connection, client):
    queue = scored(connection)
    producer = Producer(connection.default_channel)
    soon = (datetime.now(timezone.utc) + timedelta(seconds=0.3)).isoformat()
    more = {"task": "t", "eta": soon}
    for number, id in enumerate((None, True, {"a": 1}, "x")):
        producer.publish(number, routing_key="s", headers={"id": id, **more}, priority="nan")
    producer.publish("other", routing_key="o", headers={"id": "y", **more})
    other = connection.SimpleQueue("o")
    assert client.zcard("rs:{s}:d") == 4

    connection.default_channel.join(["s", "o"])

    assert other.get(timeout=10).payload == "other"
    got: list[str] = []
    wait_until(lambda: got.extend(drain(queue)) or len(got) == 4, what="all four")
    assert sorted(got) == [0, 1, 2, 3]


def test_a_score_is_a_finite_number(connection):
    queue = scored(connection)
    send(connection, queue, float("nan"), 1, -1)

    assert drain(queue) == ["-1/2", "nan/0", "1/1"]
    for score in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="a score must be a finite number"):
            connection.default_channel.reprioritise("s", "id0", score)
        with pytest.raises(ConfigError, match="x-aging-rate of s must be a finite number"):
            scored(connection, **{"x-aging-rate": score})


def test_other_brokers_are_refused(load_app, redis_url):
    module = load_app("tests.apps.plain", TEST_BROKER=redis_url)

    with pytest.raises(ConfigError, match="needs a redis-streams:// broker"):
        reprioritise(module.app, "celery", "id", 1)
