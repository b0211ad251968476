"""The support itself: private servers keep or lose what they should."""

from __future__ import annotations

import pytest
import redis


def test_a_durable_server_keeps_acknowledged_writes_through_a_kill(redis_server):
    with redis_server.client() as client:
        client.set("kept", "yes")
    port = redis_server.port

    redis_server.kill()
    redis_server.start()

    assert redis_server.port == port
    with redis_server.client() as client:
        assert client.get("kept") == b"yes"


def test_a_server_that_is_not_durable_forgets(make_redis):
    server = make_redis(durable=False)
    with server.client() as client:
        client.set("kept", "no")

    server.restart()

    with server.client() as client:
        assert client.get("kept") is None


def test_a_paused_server_answers_only_after_it_goes_on(redis_server):
    client = redis.Redis(port=redis_server.port, socket_timeout=0.2, retry=None)
    client.ping()

    redis_server.pause()

    with pytest.raises(redis.exceptions.TimeoutError):
        client.ping()
    redis_server.cont()
    with redis_server.client() as patient:
        assert patient.ping()
    client.close()


def test_a_server_takes_extra_arguments_and_a_unix_socket(make_redis):
    server = make_redis(extra=["--maxmemory", "5mb"])

    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        assert client.config_get("maxmemory") == {"maxmemory": "5242880"}


def test_a_server_that_cannot_start_says_why(make_redis):
    with pytest.raises(RuntimeError, match="no-such-option"):
        make_redis(extra=["--no-such-option", "1"])


def test_the_shared_server_is_empty_at_the_start_of_each_test(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left over", 1)


def test_the_shared_server_is_empty_again(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left over", 1)
