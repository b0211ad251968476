"""What is written in Redis about held deliveries: the keys, and one method per script.

The two calls that every message costs take a runner, which packs them by hand on a connection
that is held; the others a plain client.

Beside kombu's own ``unacked`` (tag → record) and ``unacked_index`` (tag → time) there are, under
``<global_keyprefix><prefix>:visibility:<unacked_key>:``

=============== ====================================================================
``holders``     sorted set: holder → end of its lease, in ms of the server's clock
``held:<id>``   sorted set: delivery tag → since when it is held (ms)
``pulse``       hash: when any keeper ticked last (``at``), and until when nothing is
                declared dead after an outage (``grace``); gone a day after the last tick
=============== ====================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import NoScriptError

from celery_idem.stores.redis.scripts import Script, ScriptRunner

#: Holder of the deliveries for which no queue was found.
ASIDE = "aside"
#: Tags that one call settles at most (Lua unpacks them on its stack).
SETTLE_BATCH = 500
#: Expired holders that one tick reports at most.
EXPIRED_LIMIT = 10

_PACKAGE = "celery_idem.visibility"
_HOLD = Script(_PACKAGE, "hold")
_SETTLE = Script(_PACKAGE, "settle")
_TICK = Script(_PACKAGE, "tick")
_TAKE_OVER = Script(_PACKAGE, "take_over")
_REDELIVER = Script(_PACKAGE, "redeliver")
_STRAND = Script(_PACKAGE, "strand")
_REFRESH = Script(_PACKAGE, "refresh")


@dataclass(frozen=True, slots=True)
class Redelivery:
    """One delivery on its way back: what is pushed, and where.

    ``queues`` are full keys; none means that nothing is pushed and only the tag is dropped
    (its record is gone). ``front``: next to be popped, else after all that waits.
    """

    tag: str
    payload: str
    queues: tuple[str, ...]
    front: bool


@dataclass(frozen=True, slots=True)
class Times:
    """Every length of time that the keeper uses, from the one that users set."""

    lease_s: float = 30.0  #: a holder that was not renewed for so long is dead
    horizon_s: float = 86_400.0  #: how far ahead of now a held delivery stands in kombu's index

    @property
    def tick_s(self) -> float:
        """Between two looks: leases are renewed and dead holders looked for."""
        return min(2.0, self.lease_s / 3)

    @property
    def aside_s(self) -> float:
        """Before a delivery without a queue is tried again."""
        return 2 * self.lease_s

    @property
    def quiet_s(self) -> float:
        """Nobody ticked for so long: there was an outage (or there was nobody)."""
        return 3 * self.tick_s

    @property
    def grace_s(self) -> float:
        """Time that living holders get after an outage to renew before others judge them."""
        return 3 * self.tick_s


def dropped(tag: str) -> Redelivery:
    """For a tag whose record is gone: nothing to put back, only to forget."""
    return Redelivery(tag, "", (), front=True)


class Ledger:
    """The keys of one broker database and ``unacked`` key; the callers bring the connection."""

    def __init__(
        self,
        times: Times,
        *,
        prefix: str = "idem",
        global_keyprefix: str = "",
        unacked_key: str = "unacked",
        unacked_index_key: str = "unacked_index",
    ) -> None:
        self.times = times
        self.unacked = global_keyprefix + unacked_key
        self.index = global_keyprefix + unacked_index_key
        self.base = f"{global_keyprefix}{prefix}:visibility:{unacked_key}"
        self.holders = f"{self.base}:holders"
        self.pulse = f"{self.base}:pulse"
        self._lease = _ms(times.lease_s)
        self._horizon = _ms(times.horizon_s)
        # what every message needs, encoded once
        self._records = (self.unacked.encode(), self.index.encode())
        self._hold_times = (b"%d" % self._lease, b"%d" % self._horizon)

    def held(self, holder: str) -> str:
        """Key of the set of what this holder holds."""
        return f"{self.base}:held:{holder}"

    def hold(self, runner: ScriptRunner, holder: str, tag: str, record: str) -> bool:
        """Record a delivery. True when the holder had no lease: its earlier deliveries, if it
        has any, were given to others."""
        keys = (*self._records, self.held(holder).encode(), self.holders.encode())
        args = (tag.encode(), record.encode(), holder.encode(), *self._hold_times)
        return bool(runner.call_once(_HOLD, keys, args))

    def settle(self, runner: ScriptRunner, holder: str, tags: Sequence[str]) -> int:
        """Remove deliveries for good; how many of them were still there."""
        keys = (*self._records, self.held(holder).encode())
        there = 0
        for start in range(0, len(tags), SETTLE_BATCH):
            batch = [tag.encode() for tag in tags[start : start + SETTLE_BATCH]]
            there += int(runner.call_once(_SETTLE, keys, batch))
        return there

    def tick(self, client: redis.Redis, mine: Sequence[str]) -> tuple[list[str], list[str]]:
        """Renew my holders. Returns (mine that were declared dead, anybody's that are over)."""
        times = self.times
        args = (self._lease, _ms(times.quiet_s), _ms(times.grace_s), EXPIRED_LIMIT, *mine)
        lost, expired = _call(client, _TICK, (self.holders, self.pulse), args)
        return [_text(holder) for holder in lost], [_text(holder) for holder in expired]

    def take_over(self, client: redis.Redis, dead: str, taker: str) -> int:
        """Move all that ``dead`` holds to ``taker``, leased. How many; -1: not dead after all."""
        keys = (self.holders, self.held(dead), self.held(taker))
        return int(_call(client, _TAKE_OVER, keys, (dead, taker, self._lease)))

    def peek(self, client: redis.Redis, holder: str, limit: int) -> list[tuple[str, bytes | None]]:
        """Up to ``limit`` deliveries of a holder, youngest first, with their records."""
        found = _command(client, "ZRANGE", self.held(holder), -limit, -1)
        return self.records(client, [_text(tag) for tag in reversed(found)])

    def records(self, client: redis.Redis, tags: Sequence[str]) -> list[tuple[str, bytes | None]]:
        """Each tag with its record, None where there is none."""
        if not tags:
            return []
        return list(zip(tags, _command(client, "HMGET", self.unacked, *tags), strict=True))

    def redeliver(
        self, client: redis.Redis, holder: str, items: Sequence[Redelivery], *, retire: bool
    ) -> int:
        """Put these back on their queues and renew the holder; with ``retire`` forget it when it
        holds nothing any more. How many were put back."""
        keys = [self.unacked, self.index, self.held(holder), self.holders]
        args: list[Any] = [holder, self._lease, int(retire)]
        for item in items:
            first = len(keys) + 1 if item.queues else 0
            keys += item.queues
            push = "RPUSH" if item.front else "LPUSH"
            args += [item.tag, push, item.payload, first, len(keys) if item.queues else 0]
        return int(_call(client, _REDELIVER, keys, args))

    def strand(self, client: redis.Redis, holder: str, tags: Sequence[str]) -> None:
        """Set deliveries without a queue aside; they are tried again after ``aside_s``."""
        keys = (self.held(holder), self.held(ASIDE), self.holders, self.index)
        _call(client, _STRAND, keys, (ASIDE, _ms(self.times.aside_s), self._horizon, *tags))

    def refresh(self, client: redis.Redis, holder: str, limit: int) -> int:
        """Move up to ``limit`` scores ahead that come near; how many were moved."""
        return int(_call(client, _REFRESH, (self.index, self.held(holder)), (self._horizon, limit)))


def _call(client: redis.Redis, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
    # A prefixed client of kombu's would prefix the first key only: callers bring a plain one.
    try:
        return _command(client, "EVALSHA", script.sha, len(keys), *keys, *args)
    except NoScriptError:
        return _command(client, "EVAL", script.source, len(keys), *keys, *args)


def _command(client: redis.Redis, *parts: Any) -> Any:
    return client.execute_command(*parts)  # type: ignore[no-untyped-call]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
