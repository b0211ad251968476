"""The support itself: the proxy's faults are felt on both sides."""

from __future__ import annotations

import socket

import pytest
import redis

from tests.support.waiting import wait_until


def client_of(proxy, timeout_s=5.0):
    return redis.Redis(port=proxy.port, socket_timeout=timeout_s, retry=None)


def test_a_healthy_proxy_passes_everything_on(redis_session_server, fault_proxy):
    proxy = fault_proxy(redis_session_server.address)

    with client_of(proxy) as client:
        client.set("big", b"x" * 300_000)

        assert client.get("big") == b"x" * 300_000
        assert proxy.connections() == 1


def test_a_cut_resets_old_connections_and_refuses_new_ones_until_healed(
    redis_session_server, fault_proxy
):
    proxy = fault_proxy(redis_session_server.address)
    with socket.create_connection(("127.0.0.1", proxy.port)) as link:
        wait_until(lambda: proxy.connections() == 1, what="the connection at the proxy")

        proxy.cut()

        with pytest.raises(ConnectionResetError):
            link.recv(1)
    with client_of(proxy) as client, pytest.raises(redis.exceptions.ConnectionError):
        client.ping()
    proxy.heal()
    with client_of(proxy) as client:
        assert client.ping()


def test_a_black_hole_swallows_answers_but_the_write_arrives(
    redis_url, redis_session_server, fault_proxy
):
    proxy = fault_proxy(redis_session_server.address)
    with client_of(proxy, timeout_s=0.3) as client:
        client.ping()
        proxy.set(blackhole="down")

        with pytest.raises(redis.exceptions.TimeoutError):
            client.set("written", 1)

    with redis_session_server.client() as direct:
        assert direct.get("written") == b"1"


def test_a_stalled_line_delivers_when_it_is_healed(redis_url, redis_session_server, fault_proxy):
    proxy = fault_proxy(redis_session_server.address)
    with socket.create_connection(("127.0.0.1", proxy.port)) as link:
        proxy.set(stall="up")
        link.sendall(b"SET held 1\r\n")
        link.settimeout(0.2)
        with pytest.raises(TimeoutError):
            link.recv(5)

        proxy.heal()

        link.settimeout(10)
        assert link.recv(5) == b"+OK\r\n"


def test_a_connection_is_cut_after_so_many_bytes(redis_session_server, fault_proxy):
    proxy = fault_proxy(redis_session_server.address)
    proxy.set(cut_after_bytes=7)
    with socket.create_connection(("127.0.0.1", proxy.port)) as link:
        link.sendall(b"PING\r\n")
        assert link.recv(7) == b"+PONG\r\n"

        link.sendall(b"PING\r\n")

        with pytest.raises(ConnectionResetError):
            link.recv(7)


def test_a_dead_target_resets_the_client(fault_proxy, redis_server):
    proxy = fault_proxy(redis_server.address)
    redis_server.kill()

    with client_of(proxy) as client, pytest.raises(redis.exceptions.ConnectionError):
        client.ping()
