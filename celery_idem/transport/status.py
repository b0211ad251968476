"""What the broker holds: for ``celery idem``, metrics and checks at start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis

from celery_idem.stores.redis.durability import durability_of
from celery_idem.transport import scripts
from celery_idem.transport.moving import channel_of, lists_of, stock_queues


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One queue, in one look. Ages are ``None`` where there is nothing to have one."""

    queue: str
    ready: int  #: wait to be taken
    held: int  #: taken by workers and not acked
    delayed: int  #: not due yet
    set_aside: int  #: unreadable, or delivered too often
    oldest_ready_s: float | None  #: age of the message that has waited longest
    longest_held_s: float | None  #: how long the first unacked message has been held
    next_due_s: float | None  #: seconds until the next delayed message is due


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """One worker's lease."""

    session: str
    lease_left_s: float
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StockStatus:
    """What the stock transport has on the same server."""

    waiting: dict[str, int]  #: queue → messages in its lists, where there are any
    unacked: int  #: taken by its workers and not acked, in all queues


def stock(channel: Any) -> StockStatus:
    """What is left to drain."""
    client = channel.raw
    counted = {
        queue: sum(int(client.llen(name)) for name in lists_of(channel, queue))
        for queue in stock_queues(channel)
    }
    unacked = int(client.hlen(f"{channel.global_keyprefix}{channel.unacked_key}"))
    return StockStatus({queue: n for queue, n in counted.items() if n}, unacked)


def lanes(connection: Any) -> list[LaneStatus]:
    """All queues that the broker knows, by name. Raises ConfigError for another broker."""
    channel = channel_of(connection)
    return [lane(channel, queue) for queue in known_queues(channel)]


def known_queues(channel: Any) -> list[str]:
    """Names of all queues that have any key."""
    keys = channel.keys
    pattern = f"{keys.any_lane}:*"
    found = {
        name.rpartition(b"}")[0][len(keys.prefix) + 1 :].decode()
        for name in channel.raw.scan_iter(pattern, count=1000)
    }
    return sorted(found)


def lane(channel: Any, queue: str) -> LaneStatus:
    """One queue, whether it has any key or not."""
    row = scripts.STATUS(channel.raw, [channel.keys.lane(queue)], channel.steps)
    _, ready, held, delayed, set_aside, oldest_ms, longest_ms, due_ms = row
    return LaneStatus(
        queue, ready, held, delayed, set_aside, _s(oldest_ms), _s(longest_ms), _s(due_ms)
    )


def _s(milliseconds: int) -> float | None:
    return None if milliseconds < 0 else milliseconds / 1000


def sessions(connection: Any) -> list[SessionStatus]:
    """The workers that hold a lease, the one that ends first in front."""
    channel = channel_of(connection)
    keys, client = channel.keys, channel.raw
    seconds, micros = client.time()
    now_ms = seconds * 1000 + micros / 1000
    return [
        SessionStatus(
            name.decode(),
            (over_ms - now_ms) / 1000,
            tuple(
                sorted(
                    keys.queue(lane.decode())
                    for lane in client.smembers(keys.session_lanes(name.decode()))
                )
            ),
        )
        for name, over_ms in client.zrange(keys.leases, 0, -1, withscores=True)
    ]


def warnings(client: Any) -> list[str]:
    """What in the server's configuration can lose messages, a sentence each.

    Nothing where the server does not say.
    """
    try:
        durability = durability_of(client)
    except redis.RedisError:
        return []
    return [it for it in (durability.eviction("messages"), durability.loss()) if it]
