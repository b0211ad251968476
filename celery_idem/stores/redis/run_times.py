"""Run times in Redis: a hash for each day, a field for each task, lane and bucket."""

from __future__ import annotations

from collections.abc import Iterator

import redis

_SEPARATOR = "\0"


def name_of(prefix: str, day: int) -> bytes:
    """The hash of a day."""
    return f"{prefix}:runs:{day}".encode()


def field_of(run: tuple[str, str, int]) -> bytes:
    """The field of a task, lane and bucket."""
    return _SEPARATOR.join(map(str, run)).encode()


def read(client: redis.Redis, name: bytes) -> Iterator[tuple[tuple[str, str, int], int]]:
    """What the day's hash holds, a part at a time, so that the server is never blocked."""
    # a dict, because the server may give a field twice while its table grows
    for field, runs in dict(client.hscan_iter(name.decode(), count=1000)).items():
        task, lane, bucket = bytes(field).decode().split(_SEPARATOR)
        yield (task, lane, int(bucket)), int(runs)
