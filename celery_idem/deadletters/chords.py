"""A dead member of a chord has been counted as failed. Sent again, it must not be counted twice.

With Celery's Redis backend a chord is a counter of parts: as long as it is open, the failed part
is taken out, and the replay puts in the new one; a chord that is over can't be completed any more.
Other backends look at the members' results, which a replay overwrites.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.backends.redis import RedisBackend
from kombu.serialization import loads

from celery_idem.deadletters.letter import READABLE, Letter, Message


def parts_of(message: Message) -> list[tuple[str, str]]:
    """(group id, task id) of every chord part that this message decides on: itself, or the end
    of its chain."""
    try:
        _, _, embed = loads(
            message.body, message.content_type, message.content_encoding, accept=READABLE
        )
        return [*_own(message, embed), *_of_chain(embed.get("chain") or ())]
    except Exception:
        return []  # no message of Celery's, or one that only evaluating would read


def is_over(app: Any, letter: Letter) -> bool:
    """Whether the chord that the letter belongs to has been decided without it."""
    backend = app.backend
    if not isinstance(backend, RedisBackend):
        return False
    return any(_is_decided(backend, group) for group, _ in parts_of(letter.message))


def take_back(app: Any, letter: Letter) -> None:
    """Take the failed parts out of chords that are still open."""
    backend = app.backend
    if not isinstance(backend, RedisBackend):
        return
    for group, task_id in parts_of(letter.message):
        if _is_decided(backend, group):
            continue
        parts, seen = (backend.get_key_for_group(group, end) for end in (".j", ".d"))
        client = backend.client
        for entry in client.zrange(parts, 0, -1) if client.type(parts) == b"zset" else ():
            if backend.decode(entry)[1] == task_id:
                client.zrem(parts, entry)
        if client.type(seen) == b"set":
            for member in client.smembers(seen):
                if member.decode().rpartition(":")[0] == task_id:
                    client.srem(seen, member)


def _is_decided(backend: RedisBackend, group: str) -> bool:
    """Its counter is gone, or all parts are there: Celery 5.5 leaves the counter of a chord that
    failed."""
    parts, size, more = (backend.get_key_for_group(group, end) for end in (".j", ".s", ".t"))
    client = backend.client
    total = client.get(size)
    if total is None:
        return True
    kind = client.type(parts)
    there = client.zcard(parts) if kind == b"zset" else client.llen(parts)
    return bool(there >= int(total) + int(client.get(more) or 0))


def _own(message: Message, embed: Any) -> Iterator[tuple[str, str]]:
    group, task_id = message.headers.get("group"), message.headers.get("id")
    if embed.get("chord") and group and task_id:
        yield str(group), str(task_id)


def _of_chain(chain: Any) -> Iterator[tuple[str, str]]:
    for link in chain:
        options = link.get("options") or {}
        if options.get("chord") and options.get("group_id") and options.get("task_id"):
            yield str(options["group_id"]), str(options["task_id"])
