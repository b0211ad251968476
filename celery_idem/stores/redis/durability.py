"""What in a Redis server's configuration can lose keys: eviction, and no persistence."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import redis

NO_EVICTION = "noeviction"


@dataclass(frozen=True, slots=True)
class Durability:
    """As the server tells it."""

    policy: str  #: ``maxmemory-policy``
    maxmemory: int  #: bytes; 0: no bound
    appendonly: bool
    snapshots: bool | None  #: whether ``save`` is set; None: the server does not say

    @property
    def evicts(self) -> bool:
        """Whether the server deletes keys when its memory is full."""
        return self.policy != NO_EVICTION

    def eviction(self, what: str) -> str:
        """The danger of eviction to ``what`` (messages, records …) in one sentence, or ``""``."""
        if not self.evicts:
            return ""
        return (
            f"maxmemory-policy is {self.policy}: a full server throws {what} away; "
            "set it to noeviction, then writers get an error instead"
        )

    def loss(self) -> str:
        """What a crash of the server loses in one sentence, or ``""``."""
        if self.appendonly:
            return ""
        return (
            f"appendonly is no: after a crash of the server {self.left_after_a_crash} is there; "
            "set appendonly yes (and appendfsync always where a second's messages are too many)"
        )

    @property
    def left_after_a_crash(self) -> str:
        """Without an append-only file: what is there again."""
        return "nothing" if self.snapshots is False else "the last snapshot"


def durability_of(client: redis.Redis) -> Durability:
    """Ask the server: by INFO, which managed servers answer as well, and CONFIG where it may be.

    Raises redis-py's errors when the server does not answer.
    """
    memory: Any = client.info("memory")
    persistence: Any = client.info("persistence")
    return Durability(
        policy=str(memory.get("maxmemory_policy", NO_EVICTION)),
        maxmemory=int(memory.get("maxmemory", 0)),
        appendonly=bool(int(persistence.get("aof_enabled", 1))),
        snapshots=_snapshots(client),
    )


def _snapshots(client: redis.Redis) -> bool | None:
    with contextlib.suppress(redis.ResponseError):  # managed servers refuse CONFIG
        answer: Any = client.config_get("save")
        return bool(answer.get("save", answer.get(b"save")))
    return None
