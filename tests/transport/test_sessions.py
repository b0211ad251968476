"""What a session knows of its messages, and what it tells the server, in every order of events."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import redis

from celery_idem.transport import scripts
from celery_idem.transport.keys import Keys
from celery_idem.transport.session import Held, Session, Terms
from tests.support.waiting import wait_until

LANE = Keys().lane("q")


@pytest.fixture
def session(redis_url):
    pool = redis.ConnectionPool.from_url(redis_url)
    made = Session(Keys(), pool, Terms())
    made.join([LANE])
    yield made
    made.end()


def take(session, client, count: int = 1) -> list[str]:
    """So many messages that the session holds; their tags."""
    for number in range(count):
        client.xadd(f"{LANE}:0", {"m": str(number)})
    args = [session.name, "0", "f,0", ",".join(["1"] * count), 0, "0"]
    _, *rows = scripts.FETCH(client, [session.keys.leases, LANE], args)
    ids = [row.decode() for row in rows[2::8]]
    for entry in ids:
        session.take(entry, Held(LANE, "0", entry))
    return ids


class Gate:
    """Before a command of the client: it is held until the test opens."""

    def __init__(self, client: redis.Redis, name: bytes) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._name, self._execute = name, client.execute_command
        client.execute_command = self  # type: ignore[method-assign]

    def __call__(self, *args, **options):
        if self._name in args:
            self.reached.set()
            assert self.opened.wait(30)
        return self._execute(*args, **options)


def at_the_first_acks(client: redis.Redis, happens: Callable[[], None]) -> list[bool]:
    """Just before they are sent, once; the answer tells whether it has."""
    execute, happened = client.execute_command, []

    def execute_command(*args, **options):
        if scripts.ACK.sha in args and not happened:
            happened.append(True)
            happens()
        return execute(*args, **options)

    client.execute_command = execute_command  # type: ignore[method-assign]
    return happened


def test_acks_on_their_way_at_the_end_of_a_session_come_before_its_good_bye(session, client):
    for tag in take(session, client, 3):
        session.ack(tag)
    gate = Gate(session.client, scripts.ACK.sha)
    sending = threading.Thread(target=session.flush)
    sending.start()
    assert gate.reached.wait(30)

    ending = threading.Thread(target=session.end)
    ending.start()
    ending.join(0.5)
    assert not session.ended
    gate.opened.set()
    sending.join(30)
    ending.join(30)

    assert session.ended
    assert client.xlen(f"{LANE}:0") == client.xlen(f"{LANE}:f") == 0


def test_acks_whose_connection_is_lost_at_the_end_are_sent_again_before_its_good_bye(
    session, client
):
    [tag] = take(session, client)
    session.ack(tag)

    def lose() -> None:
        raise redis.ConnectionError("lost on its way")

    lost = at_the_first_acks(session.client, lose)
    session.end()

    assert lost
    assert client.xlen(f"{LANE}:0") == client.xlen(f"{LANE}:f") == 0


def test_an_ack_that_arrived_and_was_not_answered_is_none_that_comes_too_late(
    session, client, caplog
):
    arrived, gone = take(session, client, 2)
    for tag in (arrived, gone):
        session.ack(tag)
    client.xack(f"{LANE}:0", "w", arrived)
    sent = session.take_acks()
    session.put_back(sent[:1])

    assert session.flush()
    assert "too late" not in caplog.text

    client.xack(f"{LANE}:0", "w", gone)
    session.acked(sent[1:], scripts.ACK(session.client, *session.ack_call(sent[1:])))
    assert "1 acks came too late" in caplog.text


def test_what_the_server_refuses_to_take_back_is_held_as_before(session, client):
    [tag] = take(session, client)
    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(redis.RedisError, match="NOREPLICAS"):
            session.give_back([tag])
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert list(session.held) == [tag]

    session.give_back([tag])

    assert session.held == {}
    assert client.xlen(f"{LANE}:f") == 1


def test_the_end_of_a_session_in_a_signals_handler_waits_for_nobody_who_can_not_go_on(
    session, client
):
    """The handler runs in the thread that has just begun to send."""
    [tag] = take(session, client)
    session.ack(tag)
    at_the_first_acks(session.client, session.end)
    flushing = threading.Thread(target=session.flush, daemon=True)
    flushing.start()
    flushing.join(10)

    assert not flushing.is_alive()
    assert session.ended


def test_the_end_of_a_session_waits_no_longer_than_a_sockets_patience(redis_url, client):
    pool = redis.ConnectionPool.from_url(redis_url, socket_timeout=0.5)
    session = Session(Keys(), pool, Terms())
    session.join([LANE])
    [tag] = take(session, client)
    session.ack(tag)
    gate = Gate(session.client, scripts.ACK.sha)
    sending = threading.Thread(target=session.flush)
    sending.start()
    assert gate.reached.wait(30)

    session.end()

    assert session.ended
    gate.opened.set()
    sending.join(30)
    wait_until(lambda: client.xlen(f"{LANE}:0") == 0, what="an empty lane")
