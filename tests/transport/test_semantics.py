"""What kombu's and Celery's users may expect of any broker."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

import celery_idem.transport
from celery_idem.transport import status
from celery_idem.transport.errors import Unroutable
from tests.support.waiting import wait_until
from tests.support.workers import ROOT
from tests.transport.conftest import APP, streams

#: commands that the transport sends
SENT = ("evalsha", "eval", "blpop", "ping", "client|info")


def test_the_schemes_are_known_after_the_import():
    assert celery_idem.transport.SCHEMES.keys() <= set(_aliases())


def _aliases():
    from kombu.transport import TRANSPORT_ALIASES

    return TRANSPORT_ALIASES


def test_messages_come_in_the_order_in_which_they_were_sent(connection):
    queue = connection.SimpleQueue("q")
    for number in range(100):
        queue.put(number)

    got = []
    for _ in range(100):
        message = queue.get(timeout=5)
        got.append(message.payload)
        message.ack()

    assert got == list(range(100))
    assert queue.qsize() == 0


@pytest.mark.parametrize("body", [b"\x00\xff raw", "text \u2028 é", {"a": [1, None]}])
def test_a_body_arrives_as_it_was(connection, body):
    queue = connection.SimpleQueue("q")
    options = {"serializer": "json"}
    if isinstance(body, bytes):
        options = {"content_type": "application/data", "content_encoding": "binary"}

    queue.put(body, **options)

    message = queue.get(timeout=5)
    assert (message.body if isinstance(body, bytes) else message.payload) == body
    message.ack()


def test_a_lower_number_is_more_urgent_as_with_kombus_redis(connection):
    queue = connection.SimpleQueue("q")
    for priority in (9, 3, 0, 6):
        queue.put(priority, priority=priority)

    got = []
    for _ in range(4):
        message = queue.get(timeout=5)
        got.append(message.payload)
        message.ack()

    assert got == [0, 3, 6, 9]


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "scored"}], ids=["plain", "scored"])
def test_a_requeued_message_comes_again_later_each_time_with_its_count(arguments, connection):
    queue = connection.SimpleQueue("q", queue_args=arguments)
    queue.put("again")
    counts, pauses = [], []

    for _ in range(4):
        before = time.monotonic()
        message = queue.get(timeout=10)
        pauses.append(time.monotonic() - before)
        counts.append(message.headers.get("x-delivery-count", 0))
        message.requeue()

    assert counts == [0, 1, 2, 3]
    assert pauses[2] >= 0.1
    assert pauses[3] >= 0.2
    assert pauses[1] < pauses[2]


def test_a_requeue_that_the_server_refuses_for_now_is_told_it_later(redis_server):
    with (
        Connection(streams(redis_server.url())) as connection,
        redis_server.client() as client,
    ):
        queue = connection.SimpleQueue("q")
        queue.put("again")
        message = queue.get(timeout=5)

        client.config_set("min-replicas-to-write", 1)
        message.requeue()
        assert client.xlen("rs:{q}:f") == 0
        client.config_set("min-replicas-to-write", 0)

        wait_until(lambda: client.xlen("rs:{q}:f") == 1, what="the message at the front")
        assert queue.get(timeout=5).headers["x-delivery-count"] == 1


def test_a_rejected_message_is_gone(connection, client):
    queue = connection.SimpleQueue("q")
    queue.put("no")

    queue.get(timeout=5).reject()

    wait_until(lambda: client.xlen("rs:{q}:0") == 0, what="the removal")


def test_a_closed_connection_gives_everything_unacked_back(connection, redis_url, client):
    with Connection(streams(redis_url)) as other:
        queue = other.SimpleQueue("q")
        for number in range(3):
            queue.put(number)
        for _ in range(3):
            queue.get(timeout=5)

    queue = connection.SimpleQueue("q")

    got = [queue.get(timeout=1) for _ in range(3)]
    assert [message.payload for message in got] == [0, 1, 2]
    assert all(message.delivery_info["redelivered"] for message in got)


def test_a_message_without_consumer_ack_is_removed_as_it_is_handed_out(connection, client):
    queue = connection.SimpleQueue("q", no_ack=True)
    queue.put("once")

    assert queue.get(timeout=5).payload == "once"

    assert client.xlen("rs:{q}:0") == 0
    assert client.zcard("rs:leases") == 0


def test_get_purge_and_sizes(connection, client):
    channel = connection.default_channel
    queue = Queue("q", Exchange("x"), "key", channel=channel)
    queue.declare()
    producer = Producer(channel)
    for number in range(5):
        producer.publish(number, exchange="x", routing_key="key")

    held = queue.get()
    assert held.payload == 0
    assert queue.queue_declare(passive=True).message_count == 4
    assert queue.purge() == 4
    assert queue.get() is None

    held.ack()
    assert client.xlen("rs:{q}:0") == 0


def test_a_deleted_queue_leaves_no_key(connection, client):
    queue = Queue("gone", Exchange("x"), "key", channel=connection.default_channel)
    queue.declare()
    Producer(connection.default_channel).publish(1, exchange="x", routing_key="key", priority=3)

    queue.delete()

    assert client.keys("rs:{gone}*") == []


def test_topic_and_fanout_exchanges(connection):
    channel = connection.default_channel
    topic, fan = Exchange("t", "topic"), Exchange("f", "fanout")
    got = []
    queues = [Queue("a", topic, "order.#"), Queue("b", topic, "order.paid"), Queue("c", fan)]
    with Consumer(channel, queues, callbacks=[lambda body, m: (got.append(body), m.ack())]):
        producer = Producer(channel)
        connection.drain_events(timeout=5)  # the answer to the subscription
        producer.publish("paid", exchange=topic, routing_key="order.paid")
        producer.publish("all", exchange=fan)
        while len(got) < 3:
            connection.drain_events(timeout=5)

    assert sorted(got) == ["all", "paid", "paid"]


def test_a_fanout_queue_of_one_connection_is_an_ordinary_queue_of_another(connection, client):
    """kombu keeps fanout queues in one dict a process, over all brokers."""
    Queue("c", Exchange("f", "fanout"))(connection.default_channel).declare()

    client.flushall()
    with Connection(connection.as_uri(include_password=True)) as other:
        other.SimpleQueue("c").put("hello")
        assert other.SimpleQueue("c").get(timeout=5).payload == "hello"


def test_a_task_for_an_exchange_without_queues_is_refused(connection):
    """C23"""
    producer = Producer(connection.default_channel)
    Exchange("nobody", "topic", channel=connection.default_channel).declare()

    with pytest.raises(Unroutable, match="no queue is bound to exchange 'nobody'"):
        producer.publish({}, exchange="nobody", routing_key="x", headers={"task": "t", "id": "1"})


def test_a_global_prefix_holds_for_every_key(redis_url, client):
    options = {"global_keyprefix": "shop:"}
    with Connection(streams(redis_url), transport_options=options) as connection:
        queue = connection.SimpleQueue("q")
        queue.put(1)
        queue.get(timeout=5).ack()

        assert all(key.startswith(b"shop:") for key in client.keys("*"))


def test_a_prefix_with_the_letters_of_a_pattern_is_found(redis_url):
    options = {"global_keyprefix": "shop[1]*:"}
    with Connection(streams(redis_url), transport_options=options) as connection:
        connection.SimpleQueue("q").put(1)

        assert [it.queue for it in status.lanes(connection)] == ["q"]


@pytest.mark.slow
def test_remote_control_and_consumers_added_and_cancelled(
    load_streams_app, effects, start_worker, redis_server
):
    app = load_streams_app(options={"block_s": 5, "lease_s": 30})
    worker = start_worker(f"{APP}:app", mingle=True)
    control = app.app.control

    assert control.ping(timeout=2) == [{worker.hostname: {"ok": "pong"}}]
    assert list(control.inspect(timeout=2).registered()) == [worker.hostname]

    control.add_consumer("extra", reply=True, timeout=2)
    app.effect.apply_async(("by the new consumer",), queue="extra")
    effects.wait_count("by the new consumer", 1)

    control.cancel_consumer("extra", reply=True, timeout=2)
    app.effect.apply_async(("left alone",), queue="extra")
    app.effect.delay("other queue")
    effects.wait_count("other queue", 1)
    with redis_server.client() as client:
        assert client.xlen("rs:{extra}:0") == 1


def test_control_purge_removes_what_waits(load_streams_app, redis_server):
    app = load_streams_app()
    for number in range(3):
        app.effect.delay(f"k{number}")

    assert app.app.control.purge() == 3

    with redis_server.client() as client:
        assert client.xlen("rs:{celery}:0") == 0


def test_a_rejecting_task_comes_again_until_it_takes(load_streams_app, effects, start_worker):
    app = load_streams_app()
    start_worker(f"{APP}:app")

    app.rejecting.delay("r", 3)

    effects.wait_count("r", 1)
    assert [line["count"] for line in effects.lines("r:try")] == [None, 1, 2, 3]


def test_canvas_chains_groups_and_chords(load_streams_app, start_worker):
    from celery import chain, chord, group

    app = load_streams_app()
    start_worker(f"{APP}:app", concurrency=2)

    assert chain(app.add.s(1, 2), app.add.s(3)).delay().get(timeout=30) == 6
    assert group(app.add.s(n, n) for n in range(5)).delay().get(timeout=30) == [0, 2, 4, 6, 8]
    assert chord((app.add.s(n, 1) for n in range(5)), app.total.s()).delay().get(timeout=30) == 15


def test_producers_in_threads(load_streams_app, effects, start_worker):
    import threading

    app = load_streams_app()
    threads = [
        threading.Thread(target=lambda t=t: [app.effect.delay(f"{t}-{n}") for n in range(50)])
        for t in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    start_worker(f"{APP}:app", concurrency=2)

    effects.wait_for(lambda it: len(set(it.keys())) == 200)
    assert len(effects.keys()) == 200


@pytest.mark.slow
def test_an_idle_worker_costs_the_server_less_than_a_command_a_second(
    load_streams_app, effects, start_worker, redis_server
):
    app = load_streams_app(options={"lease_s": 30})
    start_worker(f"{APP}:app")
    app.effect.delay("warm")
    effects.wait_count("warm", 1)
    with redis_server.client() as client:

        def asked() -> dict[str, int]:
            """What the transport sent; what scripts call inside is no round trip.

            (The worker's own heartbeat event is a PUBLISH every two seconds.)
            """
            stats = client.info("commandstats")
            return {n: stats.get(f"cmdstat_{n}", {}).get("calls", 0) for n in SENT}

        first = asked()
        wait_until(lambda: asked()["blpop"] > first["blpop"] + 1, what="an idle round")
        started, before = time.monotonic(), asked()
        wait_until(lambda: time.monotonic() - started > 12, what="time to pass")
        after, took_s = asked(), time.monotonic() - started

    grown = {name: after[name] - before[name] for name in after}
    assert sum(grown.values()) / took_s < 1, grown


def test_what_a_process_holds_whose_connection_broke_goes_back_when_it_ends(redis_url, client):
    """At once, and not when its lease is over."""
    with Connection(streams(redis_url)) as connection:
        connection.SimpleQueue("q").put("held")
    code = (
        "import sys, celery_idem.transport; from kombu import Connection\n"
        "connection = Connection(sys.argv[1], transport_options={'lease_s': 600})\n"
        "print(connection.SimpleQueue('q').get(timeout=5).payload)\n"
        "connection.collect()\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code, streams(redis_url)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert ended.stdout == "held\n"
    assert client.xlen("rs:{q}:f") == 1
    assert client.zcard("rs:leases") == 0
