"""Channels of one connection, and consumers of one queue: each has what it took."""

from __future__ import annotations

import threading

import pytest
import redis
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub

from celery_idem.transport import scripts
from celery_idem.transport.answers import FetchAnswer
from tests.support.waiting import wait_until
from tests.transport.conftest import streams


def test_channels_of_one_connection_that_consume_one_queue_ack_what_they_took(connection, client):
    queue = Queue("q", Exchange("x"), "q")
    first, second = connection.channel(), connection.channel()
    unacked: dict[object, list] = {first: [], second: []}
    most = dict.fromkeys(unacked, 0)

    def got(message):
        unacked[message.channel].append(message)
        most[message.channel] = max(most[message.channel], len(unacked[message.channel]))

    consumers = []
    for channel in unacked:
        consumer = Consumer(channel, [queue], on_message=got, prefetch_count=1)
        consumer.consume()
        consumers.append(consumer)
    producer, done = Producer(connection.default_channel), set()
    for number in range(20):
        producer.publish(number, exchange="x", routing_key="q")

    while len(done) < 20:
        while not all(unacked.values()) and len(done) + sum(map(len, unacked.values())) < 20:
            connection.drain_events(timeout=5)
        for message in [it for taken in unacked.values() for it in taken]:
            unacked[message.channel].remove(message)
            message.ack()
            done.add(message.payload)

    assert most == {first: 1, second: 1}
    assert done == set(range(20))
    first.close()
    second.close()
    assert client.xlen("rs:{q}:0") == client.xlen("rs:{q}:f") == 0


def test_a_cancelled_consumer_leaves_the_others_of_its_queue_be(connection):
    queue, got = Queue("q", Exchange("x"), "q"), []

    def consume(channel):
        consumer = Consumer(channel, [queue], on_message=lambda m: (got.append(m), m.ack()))
        consumer.consume()
        return consumer

    channel, other = connection.channel(), connection.channel()
    stays, goes, elsewhere = consume(channel), consume(channel), consume(other)
    goes.cancel()
    elsewhere.cancel()

    Producer(connection.default_channel).publish(1, exchange="x", routing_key="q")
    connection.drain_events(timeout=5)

    assert [it.payload for it in got] == [1]
    stays.cancel()


def test_a_channel_that_closes_before_it_has_read_that_its_acks_arrived_says_nothing(
    redis_url, client, caplog
):
    with Connection(streams(redis_url)) as connection:
        queue = connection.SimpleQueue("q")
        queue.put("done")
        message = queue.get(timeout=5)
        channel = message.channel
        channel.gathers_acks = True
        message.ack()
        channel.connection.cycle._register_BRPOP(channel)
        wait_until(lambda: client.xlen("rs:{q}:0") == 0, what="the ack")

    assert client.xlen("rs:{q}:f") == 0
    assert "too late" not in caplog.text


def test_what_no_consumer_is_there_for_and_the_server_refuses_now_is_given_back_later(
    connection, client
):
    connection.SimpleQueue("q").put("nobody's")
    channel = connection.channel()
    session = channel.join(["q"])
    reply = scripts.FETCH(channel.raw, *channel._fetch_call(session, ["q"], [1]))
    channel._fetched(FetchAnswer(["q"], [1]), reply)

    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(redis.ConnectionError, match="NOREPLICAS"):
            channel._deliver_next()
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert len(session.held) == 1
    channel._deliver_next()

    assert session.held == {}
    assert client.xlen("rs:{q}:f") == 1


def test_only_who_reads_drops_a_connection_whose_answer_is_overdue(redis_url):
    """Celery 5.7 turns the timers from another thread while it waits for its pool to end."""
    with Connection(streams(redis_url)) as connection:
        hub = Hub()
        connection.register_with_event_loop(hub)
        channel = connection.default_channel
        Queue("q")(channel).consume(no_ack=False, callback=list)
        cycle = channel.connection.cycle
        cycle.on_poll_start()
        waiting = channel._in_poll
        assert waiting is not None
        channel._brpop_sent_at -= 60

        other = threading.Thread(target=cycle.drop_deaf_connections)
        other.start()
        other.join()
        assert channel._in_poll is waiting

        cycle.drop_deaf_connections()
        assert channel._in_poll is None
        hub.close()
