"""What is sent to Redis in kombu's stead: the same bytes that kombu would send for our keys."""

from __future__ import annotations

from collections.abc import Iterator, Set
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection
from redis import Redis

from celery_idem.core.line import Line
from celery_idem.core.order import WeightedOrder, parse_lanes
from celery_idem.lanes.kombu_order import RedisFetch
from tests.support.waiting import wait_until


class Fetcher:
    """The part of a worker that the cycle asks."""

    def __init__(self, lanes: dict[str, Any]) -> None:
        parsed = parse_lanes(lanes)
        self.line: Line[Any] = Line(parsed, WeightedOrder(parsed), slots=4, fetched=True)
        self._lane_of = {lane.queue: lane.name for lane in parsed}

    def lane_of_queue(self, queue: str) -> str:
        return self._lane_of[queue]

    def room(self) -> Set[str]:
        return self.line.fetchable()


@pytest.fixture(params=["", "shop:"], ids=["plain", "prefixed"])
def asked(request: pytest.FixtureRequest, redis_url: str) -> Iterator[tuple[RedisFetch, Any, Any]]:
    """Our side of a consuming channel, the channel, and the list of what it sent."""
    worker = Fetcher({"critical": 10, "normal": {"weight": 5, "queue": "n"}, "low": 1})
    options = {
        "global_keyprefix": request.param,
        "priority_steps": [0, 5],
    }
    with Connection(redis_url, transport_options=options) as connection:
        channel: Any = connection.channel()
        for queue in ("critical", "n", "low"):
            channel.basic_consume(queue, False, lambda message: None, queue)
        channel.connection.cycle._client_registered(channel, channel.client, "BRPOP")
        fetch = RedisFetch(worker, channel, hub=None)
        sent: list[bytes] = []
        channel.client.connection.send_packed_command = lambda packed, **_: sent.append(
            b"".join(packed)
        )
        yield fetch, channel, sent
        channel._in_poll = None


def test_kombu_would_send_the_same_bytes(asked: tuple[RedisFetch, Any, Any]) -> None:
    fetch, channel, sent = asked

    fetch._ask(3)
    of_ours = sent.pop(), channel._in_poll, hasattr(channel, "_brpop_sent_at")
    channel._in_poll = None
    fetch._ask_by_channel(3)

    assert of_ours == (sent.pop(), channel.client.connection, True)


def test_every_priority_of_a_lane_comes_before_the_next_lane(
    asked: tuple[RedisFetch, Any, Any],
) -> None:
    fetch, channel, sent = asked

    fetch._ask(3)

    prefix = channel.global_keyprefix.encode()
    keys = [b"critical", b"critical\x06\x165", b"n", b"n\x06\x165", b"low", b"low\x06\x165"]
    words = [word for word in sent.pop().split(b"\r\n") if word[:1] not in (b"$", b"*")]
    assert words == [b"BRPOP", *(prefix + key for key in keys), b"3", b""]


def test_stock_kombu_is_asked_by_its_own_way_where_a_transport_has_another(
    asked: tuple[RedisFetch, Any, Any],
) -> None:
    fetch, channel, sent = asked
    fetcher: Any = fetch._cycle._worker

    class Other(type(channel)):  # type: ignore[misc]
        def _brpop_start(self, timeout: float | None = None) -> None:
            sent.append(tuple(self._queue_cycle.consume(9)))

    del channel._brpop_start
    channel.__class__ = Other
    fetch = RedisFetch(fetcher, channel, hub=None)

    fetch._ask_by_channel(1)

    assert not fetch._direct
    assert [key.split("\x06")[0] for key in sent.pop()] == ["critical"] * 2 + ["n"] * 2 + [
        "low"
    ] * 2


@pytest.fixture
def asking(redis_url: str) -> Iterator[tuple[RedisFetch, Any]]:
    """Our side of a channel whose BRPOP, of both lanes, is at the server, and the channel."""
    worker = Fetcher({"critical": 10, "low": 1})
    with Connection(redis_url, transport_options={"brpop_timeout": 60}) as connection:
        channel: Any = connection.channel()
        for queue in ("critical", "low"):
            channel.basic_consume(queue, False, lambda message: None, queue)
        fetch = RedisFetch(worker, channel, hub=None)
        channel.connection.cycle._register_BRPOP(channel)
        wait_until(lambda: is_waiting(redis_url), what="a BRPOP")
        yield fetch, channel


def is_waiting(redis_url: str) -> bool:
    with Redis.from_url(redis_url) as client:
        return bool(client.info("clients")["blocked_clients"])


@pytest.mark.parametrize("paused", [("critical",), ("critical", "low")], ids=["one", "all"])
def test_what_may_not_be_offered_any_more_is_not(
    asking: tuple[RedisFetch, Any], redis_url: str, paused: tuple[str, ...]
) -> None:
    fetch, channel = asking
    line: Line[Any] = fetch._cycle._worker.line
    for lane in paused:
        line.pause(lane)

    fetch.offer_again()

    wait_until(lambda: not is_waiting(redis_url), 0.5, "the end of the BRPOP")
    with pytest.raises(Empty):
        channel._brpop_read()


def test_an_answer_on_its_way_is_read_though_no_lane_has_room(
    asking: tuple[RedisFetch, Any], redis_url: str
) -> None:
    """Unread it would belong to nobody: it is popped from its list, and not noted as unacked."""
    fetch, channel = asking
    line: Line[Any] = fetch._cycle._worker.line
    for lane in ("critical", "low"):
        line.pause(lane)

    before = channel.qos.can_consume()
    fetch.offer_again()
    with pytest.raises(Empty):
        channel._brpop_read()

    assert before
    assert not channel.qos.can_consume()


def test_a_broadcast_is_not_taken_for_a_message_of_the_lane_before_it(
    asking: tuple[RedisFetch, Any],
) -> None:
    fetch, channel = asking
    channel._fanout_to_queue["news"] = "bcast.1"
    fetch._cycle.rotate("low")

    queues = [
        fetch.queue_of(SimpleNamespace(delivery_info={"exchange": exchange}))
        for exchange in ("news", "")
    ]

    assert queues == ["bcast.1", "low"]


def test_a_channel_asks_by_one_client_until_its_connections_are_gone(
    asking: tuple[RedisFetch, Any],
) -> None:
    _, channel = asking

    def client() -> Any:
        with channel.conn_or_acquire() as found:
            return found

    first, second = client(), client()
    channel._disconnect_pools()
    third = client()

    assert first is second
    assert third is not first
    assert third.connection_pool is channel.pool
    assert third.ping()
