"""What nobody can read, and what was delivered too often, is set aside by the broker (C20)."""

from __future__ import annotations

import json
from queue import Empty

import pytest
from kombu import Connection

from tests.transport.conftest import streams


def envelope(body="", **parts):
    """What stands in a stream, and is wrong in some part."""
    whole = {"body": body, "headers": {}, "properties": {"body_encoding": "utf-8"}, **parts}
    return {"m": json.dumps(whole)}


@pytest.mark.parametrize(
    "junk",
    [
        {"m": "plain text"},
        {"other": "field"},
        {"m": "[1, 2]"},
        envelope(properties="none"),
        envelope(properties={"delivery_info": "direct"}),
        envelope(headers=["id"]),
        envelope(body={"args": []}),
        envelope(body="\udc80"),
        envelope("x", properties={"body_encoding": "base64"}),
        envelope("x", properties={"body_encoding": "rot13"}),
        envelope("x", properties={"body_encoding": 64}),
        {"m": '{"properties": {}, "body": {"__type__": "decimal", "__value__": "x"}}'},
    ],
)
def test_what_can_not_be_read_is_set_aside_as_it_is(junk, connection, client):
    """C20"""
    client.xadd("rs:{q}:0", junk)
    queue = connection.SimpleQueue("q")
    queue.put("good")

    message = queue.get(timeout=5)

    assert message.payload == "good"
    message.ack()
    [(_, dead)] = client.xrange("rs:{q}:dead")
    assert next(iter(junk.values())).encode() in dead[b"m"]
    assert dead[b"reason"] == b"undecodable"


def test_an_envelope_needs_no_headers(connection, client):
    """Producers in other languages write null where they have none."""
    client.xadd("rs:{q}:0", envelope("hello", headers=None))

    message = connection.SimpleQueue("q").get(timeout=5)

    assert (message.body, message.headers) == (b"hello", {})


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "scored"}], ids=["plain", "scored"])
def test_a_poisonous_message_is_set_aside_after_so_many_deliveries(arguments, redis_url, client):
    options = {"max_deliveries": 3, "requeue_delay_s": 0.01}
    with Connection(streams(redis_url), transport_options=options) as connection:
        queue = connection.SimpleQueue("q", queue_args=arguments)
        queue.put("poison")
        for _ in range(3):
            queue.get(timeout=5).requeue()

        with pytest.raises(Empty):
            queue.get(timeout=0.5)

    [(_, dead)] = client.xrange("rs:{q}:dead")
    assert dead[b"reason"] == b"poison"
    assert dead[b"n"] == b"3"
