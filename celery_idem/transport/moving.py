"""Moving in and out without stopping: between kombu's lists and our lanes, message by message.

Each message is moved by one script, so it is never in both or in neither. What workers hold stays
with them until they ack it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from celery_idem.core.errors import ConfigError
from celery_idem.transport import envelope, kombu_base, scripts
from celery_idem.transport.keys import FRONT

#: Messages that one call moves.
BATCH = 100


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved, or would be, of one queue."""

    queue: str
    waiting: int  #: from the queue itself
    unacked: int = 0  #: taken by workers that are gone


def lists_of(channel: Any, queue: str) -> list[str]:
    """The lists in which kombu's Redis transport keeps this queue, most urgent first."""
    name = f"{channel.global_keyprefix}{queue}"
    return [name if step == "0" else f"{name}{channel.sep}{step}" for step in channel.steps[1:]]


def channel_of(connection: Any) -> Any:
    """The connection's channel, or :class:`ConfigError` when the broker is another one."""
    channel = connection.default_channel
    if not hasattr(channel, "keys"):
        raise ConfigError(f"this needs a redis-streams:// broker, not {connection.as_uri()}")
    return channel


def drain(
    connection: Any, queues: Iterable[str], *, idle_s: float | None = None, dry_run: bool = False
) -> list[Moved]:
    """Move what waits in the stock transport's lists, and what its dead workers left unacked.

    ``idle_s``: unacked messages are moved when they were taken longer ago (default: the
    transport's ``visibility_timeout``). Give 0 only when no stock worker runs any more: what a
    living one has would run twice.
    """
    channel = channel_of(connection)
    limit_s = float(channel.visibility_timeout if idle_s is None else idle_s)
    unacked = _abandoned(channel, limit_s)
    return [_drain_one(channel, queue, unacked.get(queue, []), dry_run) for queue in queues]


def _drain_one(
    channel: Any, queue: str, unacked: list[tuple[str, dict[str, Any]]], dry_run: bool
) -> Moved:
    lane, lists = channel.keys.lane(queue), lists_of(channel, queue)
    if dry_run:
        return Moved(queue, sum(channel.raw.llen(name) for name in lists), len(unacked))
    waiting, steps = 0, channel.steps[1:]
    while moved := scripts.ACCEPT(channel.raw, [lane, *lists], [BATCH, *steps]):
        waiting += moved
    hash_, index = (f"{channel.global_keyprefix}{name}" for name in _unacked_keys(channel))
    restored = sum(
        scripts.ACCEPT_UNACKED(channel.raw, [lane, hash_, index], [tag, envelope.encode(message)])
        for tag, message in unacked
    )
    return Moved(queue, waiting, restored)


def _unacked_keys(channel: Any) -> tuple[str, str]:
    return channel.unacked_key, channel.unacked_index_key


def _abandoned(channel: Any, idle_s: float) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Queue → delivery tags and messages that stock workers took longer ago than ``idle_s``."""
    hash_, index = (f"{channel.global_keyprefix}{name}" for name in _unacked_keys(channel))
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for tag in channel.raw.zrangebyscore(index, "-inf", time.time() - idle_s):
        raw = channel.raw.hget(hash_, tag)
        if raw is None:
            continue
        message, exchange, routing_key = kombu_base.redis.loads(raw)
        for queue in channel._lookup(exchange, routing_key) or [routing_key]:
            found.setdefault(queue, []).append((tag.decode(), message))
    return found


def roll_back(connection: Any, queues: Iterable[str], *, dry_run: bool = False) -> list[Moved]:
    """Move what waits in our lanes to the stock transport's lists, delayed messages too.

    Stop our workers first: what they give back at their end is then moved as well. A stock worker
    keeps delayed messages in its memory until they are due, by its own clock.
    """
    channel = channel_of(connection)
    return [_roll_back_one(channel, queue, dry_run) for queue in queues]


def _roll_back_one(channel: Any, queue: str, dry_run: bool) -> Moved:
    lane, lists = channel.keys.lane(queue), lists_of(channel, queue)
    if dry_run:
        delayed = channel.raw.zcard(f"{lane}:d")
        return Moved(queue, channel._size(queue) + delayed)
    total, steps = 0, channel.steps
    keys = [lane, channel.keys.due, lists[0], *lists]
    while moved := scripts.ROLL_BACK(channel.raw, keys, [BATCH, steps[1], FRONT, *steps[1:]]):
        total += moved
    return Moved(queue, total)
