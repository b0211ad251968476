"""Moving in and out without stopping: between kombu's lists and our lanes, message by message.

Each message is moved by one script, so it is never in both or in neither, whenever this process
dies. What workers hold stays with them until they ack it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from celery_idem.core.errors import ConfigError
from celery_idem.stores.redis.pattern import glob_of
from celery_idem.transport import envelope, kombu_base, scripts, taking_over
from celery_idem.transport.keys import FRONT

logger = logging.getLogger("celery_idem.transport")

#: Messages that one call moves.
BATCH = 100

#: Told how many messages were moved since it was told last.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved, or would be, of one queue."""

    queue: str
    waiting: int  #: from the queue itself, with what is not due yet
    unacked: int = 0  #: taken by workers that are gone

    @property
    def total(self) -> int:
        return self.waiting + self.unacked


def _quietly(count: int) -> None:
    """No progress is wanted."""


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


def accept_call(channel: Any, queue: str, count: int) -> tuple[list[str], list[scripts.Arg]]:
    """Keys and arguments of the script that moves so many messages from stock's lists."""
    keys, lane = channel.keys, channel.keys.lane(queue)
    return [lane, keys.due, keys.wake, *lists_of(channel, queue)], [count, *channel.steps[1:]]


def stock_queues(channel: Any) -> list[str]:
    """Queues that stock's consumers or producers have declared on this server, by name."""
    pattern = f"{glob_of(channel.global_keyprefix)}{channel.keyprefix_queue % ('*',)}"
    names = set()
    for table in channel.raw.scan_iter(pattern, count=1000, _type="set"):
        for member in channel.raw.smembers(table):
            names.add(member.decode().rpartition(channel.sep)[2])
    return sorted(name for name in names if name and not is_for_control(name))


def is_for_control(queue: str) -> bool:
    """Whether a queue is Celery's own: remote control, its replies, events."""
    return queue.endswith(".celery.pidbox") or queue.startswith("celeryev.")


def drain(
    connection: Any,
    queues: Iterable[str],
    *,
    idle_s: float | None = None,
    dry_run: bool = False,
    progress: Progress = _quietly,
) -> list[Moved]:
    """Move what waits in the stock transport's lists, and what its dead workers left unacked.

    ``idle_s``: unacked messages are moved when they were taken longer ago (default: the
    transport's ``visibility_timeout``). Give 0 only when no stock worker runs any more: what a
    living one has would run twice. Messages with an ETA wait in the broker afterwards.
    """
    channel = channel_of(connection)
    limit_s = float(channel.visibility_timeout if idle_s is None else idle_s)
    unacked: dict[str, list[str]] = {}
    for tag, queue, _ in _abandoned(channel, limit_s):
        unacked.setdefault(queue, []).append(tag)
    return [
        _drain_one(channel, queue, unacked.get(queue, []), dry_run, progress) for queue in queues
    ]


def _drain_one(
    channel: Any, queue: str, unacked: list[str], dry_run: bool, progress: Progress
) -> Moved:
    if dry_run:
        waiting = sum(channel.raw.llen(name) for name in lists_of(channel, queue))
        return Moved(queue, waiting, len(unacked))
    restored = 0
    for tag in unacked:
        count = _restore(channel, queue, tag)
        restored += count
        progress(count)
    waiting, moved = 0, BATCH
    while moved:
        moved, _ = scripts.ACCEPT(channel.raw, *accept_call(channel, queue, BATCH))
        waiting += moved
        progress(moved)
    return Moved(queue, waiting, restored)


def _restore(channel: Any, queue: str, tag: str) -> int:
    """Move one unacked message; 0 when it was acked or restored meanwhile."""
    hash_, index = _unacked_keys(channel)
    found = _read_unacked(channel, tag)
    if found is None:
        return 0
    message = found[0]
    delay_s = envelope.delay_s_of(message) or 0.0
    keys = [channel.keys.lane(queue), hash_, index, channel.keys.due, channel.keys.wake]
    delay_ms = max(int(delay_s * 1000), 0)
    args: list[scripts.Arg] = [tag, envelope.encode(message), delay_ms]
    return int(scripts.ACCEPT_UNACKED(channel.raw, keys, args))


def _unacked_keys(channel: Any) -> tuple[str, str]:
    prefix = channel.global_keyprefix
    return f"{prefix}{channel.unacked_key}", f"{prefix}{channel.unacked_index_key}"


def _abandoned(channel: Any, idle_s: float) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Tag, queue and message of what stock workers took longer ago than ``idle_s``."""
    _, index = _unacked_keys(channel)
    for raw_tag in channel.raw.zrangebyscore(index, "-inf", time.time() - idle_s):
        tag = raw_tag.decode()
        found = _read_unacked(channel, tag)
        if found is None:
            continue
        message, exchange, routing_key = found
        # as many queues as are bound, and one message: the first of them gets it
        queue = next(iter(channel._lookup(exchange, routing_key)), routing_key)
        yield tag, queue, message


def _read_unacked(channel: Any, tag: str) -> tuple[dict[str, Any], str, str] | None:
    """What a stock worker holds under a tag; ``None`` when nothing, or nothing that can be read."""
    raw = channel.raw.hget(_unacked_keys(channel)[0], tag)
    if raw is None:
        return None
    try:
        message, exchange, routing_key = kombu_base.redis.loads(raw)
        message["properties"]["delivery_info"]
    except (ValueError, TypeError, KeyError):
        logger.warning("an unacked message can't be read and stays where it is: %s", tag)
        return None
    return message, exchange, routing_key


def roll_back(
    connection: Any,
    queues: Iterable[str],
    *,
    dry_run: bool = False,
    progress: Progress = _quietly,
) -> list[Moved]:
    """Move what waits in our lanes to the stock transport's lists, delayed messages too.

    Stop our workers first: what they give back at their end is then moved as well. A stock worker
    keeps delayed messages in its memory until they are due, by its own clock.
    """
    channel = channel_of(connection)
    if not dry_run:
        take_over(channel)
    return [_roll_back_one(channel, queue, dry_run, progress) for queue in queues]


def take_over(channel: Any) -> None:
    """What dead workers of ours held waits again; nobody else may be there to see to it."""
    while taking_over.sweep(channel.raw, channel.keys).more:
        pass


def _roll_back_one(channel: Any, queue: str, dry_run: bool, progress: Progress) -> Moved:
    lane, lists = channel.keys.lane(queue), lists_of(channel, queue)
    if dry_run:
        delayed = channel.raw.zcard(f"{lane}:d")
        return Moved(queue, channel._size(queue) + delayed)
    total, steps, go_on = 0, channel.steps, True
    keys = [lane, channel.keys.due, lists[0], *lists]
    while go_on:
        call = [BATCH, steps[1], FRONT, *steps[1:]]
        moved, set_aside = scripts.ROLL_BACK(channel.raw, keys, call)
        total += moved
        progress(moved)
        go_on = bool(moved or set_aside)
    return Moved(queue, total)
