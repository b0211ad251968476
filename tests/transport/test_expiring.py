"""Queues that expire: when nobody uses them, and not before."""

from __future__ import annotations

import time

from kombu import Consumer, Exchange, Producer, Queue

from tests.support.waiting import wait_until


def test_an_expiring_queue_goes_when_nobody_uses_it(connection, client):
    queue = Queue("brief", Exchange("x"), "k", expires=0.3, channel=connection.default_channel)
    queue.declare()
    Producer(connection.default_channel).publish(1, exchange="x", routing_key="k")
    assert client.exists("rs:{brief}:0")

    wait_until(lambda: not client.keys("rs:{brief}*"), what="the expiry")


def test_taking_from_an_expiring_queue_keeps_it(connection, client):
    queue = Queue("brief", Exchange("x"), "k", expires=30, channel=connection.default_channel)
    queue.declare()
    for _ in range(2):
        Producer(connection.default_channel).publish(1, exchange="x", routing_key="k")
    client.pexpire("rs:{brief}:0", 5000)

    queue.get(no_ack=True)

    assert client.pttl("rs:{brief}:0") > 20_000


def test_a_queue_with_a_consumer_does_not_expire(connection, client):
    """As in AMQP: neither what waits behind a long job goes, nor what the job itself is made of."""
    channel = connection.default_channel
    channel.basic_qos(0, 1, False)
    got = []
    queue = Queue("brief", Exchange("x"), "k", expires=0.6, channel=channel)
    with Consumer(channel, [queue], callbacks=[lambda body, message: got.append(message)]):
        for word in ("held", "waits"):
            Producer(channel).publish(word, exchange="x", routing_key="k")
        connection.drain_events(timeout=5)
        taken = time.monotonic()
        wait_until(lambda: time.monotonic() - taken > 1.5, what="twice the time of the queue")

        assert client.xpending("rs:{brief}:0", "w")["pending"] == 1
        got[0].ack()
        connection.drain_events(timeout=5)
        got[1].ack()

    assert [message.payload for message in got] == ["held", "waits"]
    wait_until(lambda: not client.keys("rs:{brief}*"), what="the expiry without a consumer")
