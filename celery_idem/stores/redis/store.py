"""Records in Redis (or Valkey): a hash per key, every operation one script, one round trip."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from celery_idem.core.histogram import Histogram, RunCounts, days_back, merged, today
from celery_idem.core.key import REVOKED_TASK
from celery_idem.core.record import (
    Claim,
    Claimed,
    ClaimRequest,
    Done,
    Ending,
    Held,
    Lease,
    Outcome,
    Poison,
    Record,
    Reused,
    Revoked,
    State,
    Superseded,
)
from celery_idem.core.settings import DEFAULT_STORE_PATIENCE_S
from celery_idem.stores.base import RUN_TIMES_DAYS
from celery_idem.stores.redis import run_times
from celery_idem.stores.redis.connection import client_from_url
from celery_idem.stores.redis.durability import durability_of
from celery_idem.stores.redis.pattern import glob_of
from celery_idem.stores.redis.scripts import Script, ScriptRunner

_PACKAGE = "celery_idem.stores.redis"
_CLAIM, _RENEW, _COMPLETE, _SETTLE, _RELEASE, _CRASH, _PUT_STEP, _REVOKE, _FREE = (
    Script(_PACKAGE, name)
    for name in (
        "claim", "renew", "complete", "settle", "release", "crash", "put_step", "revoke", "free",
    )
)  # fmt: skip
_STATES = {b"f": State.FREE, b"r": State.RUNNING, b"w": State.WAITING, b"d": State.DONE}


class RedisStore:
    """See :class:`celery_idem.stores.base.Store`.

    ``prefix`` starts every key; ``hash_keys`` stores a SHA-256 instead of the key, for keys that
    hold what must not be read in Redis (``scan`` then can't search by text).
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        prefix: str = "idem",
        hash_keys: bool = False,
        patience_s: float = DEFAULT_STORE_PATIENCE_S,
    ) -> None:
        self.client = client
        self._prefix = prefix
        self._hash_keys = hash_keys
        self._scripts = ScriptRunner(client, patience_s)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "idem",
        hash_keys: bool = False,
        patience_s: float = DEFAULT_STORE_PATIENCE_S,
        **options: Any,
    ) -> RedisStore:
        """A store on the server of the URL; ``options`` as for
        :func:`~celery_idem.stores.redis.connection.client_from_url`."""
        client = client_from_url(url, **options)
        return cls(client, prefix=prefix, hash_keys=hash_keys, patience_s=patience_s)

    def claim(self, request: ClaimRequest) -> Outcome:
        reply = self._scripts.call(
            _CLAIM,
            self._name(request.key),
            request.owner.encode(),
            b"%d" % request.lease_ms,
            b"%d" % request.retention_ms,
            request.fingerprint.encode(),
            request.task_id.encode(),
            b"%d" % request.attempt,
            b"%d" % request.max_crashes,
        )
        return _outcome(reply, request)

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        if not leases:
            return []
        calls = [
            (
                self._name(lease.key),
                (
                    lease.owner.encode(),
                    b"%d" % lease.lease_ms,
                    b"%d" % lease.retention_ms,
                    lease.task_id.encode(),
                    b"%d" % lease.attempt,
                ),
            )
            for lease in leases
        ]
        return [reply == 1 for reply in self._scripts.call_many(_RENEW, calls)]

    def complete(self, claim: Claim, result: bytes) -> bool:
        reply = self._scripts.call(
            _COMPLETE,
            self._name(claim.key),
            claim.owner.encode(),
            result,
            b"%d" % claim.retention_ms,
            b"%d" % claim.fence,
            claim.task_id.encode(),
            b"%d" % claim.attempt,
        )
        return bool(reply == 1)

    def settle(self, key: str, task_id: str) -> None:
        self._scripts.call(_SETTLE, self._name(key), task_id.encode())

    def release(self, claim: Claim, ending: Ending, wait_ms: int = 0) -> bool:
        reply = self._scripts.call(
            _RELEASE,
            self._name(claim.key),
            claim.owner.encode(),
            ending.value.encode(),
            b"%d" % wait_ms,
            b"%d" % claim.retention_ms,
            claim.task_id.encode(),
            b"%d" % (claim.attempt + 1),
        )
        return bool(reply == 1)

    def crash(self, key: str, owner: str) -> int | None:
        reply = int(self._scripts.call(_CRASH, self._name(key), owner.encode()))
        return None if reply < 0 else reply

    def put_step(self, claim: Claim, name: str, value: bytes) -> bool:
        reply = self._scripts.call(
            _PUT_STEP,
            self._name(claim.key),
            claim.owner.encode(),
            name.encode(),
            value,
            b"%d" % claim.fence,
            b"%d" % claim.lease_ms,
            b"%d" % claim.retention_ms,
            claim.task_id.encode(),
            b"%d" % claim.attempt,
        )
        return bool(reply == 1)

    def revoke(self, key: str, retention_ms: int) -> None:
        self._scripts.call(_REVOKE, self._name(key), b"%d" % retention_ms)

    def free(self, key: str) -> bool:
        return bool(self._scripts.call(_FREE, self._name(key)) == 1)

    def forget(self, key: str) -> bool:
        return self._scripts.patiently(lambda: bool(self.client.delete(self._name(key))))

    def get(self, key: str) -> Record | None:
        return self._read(self._name(key), key)

    def scan(self, contains: str = "", limit: int = 1000) -> Iterator[Record]:
        found = 0
        text = glob_of(contains) + "*" if contains else ""
        pattern = f"{glob_of(self._prefix)}:{{*{text}}}"
        start = len(self._prefix) + 2
        seen: set[bytes] = set()  # SCAN may give a key twice while the table is rehashed
        for name in self._names(pattern.encode()):
            if name in seen or (record := self._read(name, name[start:-1].decode())) is None:
                continue
            seen.add(name)
            yield record
            found += 1
            if found >= limit:
                return

    def carry(self, counts: RunCounts) -> None:
        if not counts:
            return
        name = run_times.name_of(self._prefix, today())
        for run, times in counts.items():
            self._scripts.carry(b"HINCRBY", name, run_times.field_of(run), b"%d" % times)
        self._scripts.carry(b"EXPIRE", name, b"%d" % (RUN_TIMES_DAYS * 86400))

    def run_times(self, days: int) -> dict[tuple[str, str], Histogram]:
        def look() -> dict[tuple[str, str], Histogram]:
            names = [run_times.name_of(self._prefix, day) for day in days_back(days)]
            return merged(run for name in names for run in run_times.read(self.client, name))

        return self._scripts.patiently(look)

    def warnings(self) -> list[str]:
        durability = self._scripts.patiently(lambda: durability_of(self.client))
        sentence = durability.eviction("records")
        if not sentence:
            return []
        # an evicted lease looks like a dead owner, an evicted done record runs again
        return [f"the Redis store: {sentence}"]

    def close(self) -> None:
        self._scripts.close()

    def _name(self, key: str) -> bytes:
        if self._hash_keys and not key.startswith(REVOKED_TASK):
            key = hashlib.sha256(key.encode()).hexdigest()
        return f"{self._prefix}:{{{key}}}".encode()

    def _names(self, pattern: bytes) -> Iterator[bytes]:
        cursor = 0
        while True:
            look = functools.partial(self.client.scan, cursor, match=pattern, count=500)
            answer: Any = self._scripts.patiently(look)
            cursor, names = answer
            yield from names
            if cursor == 0:
                return

    def _read(self, name: bytes, key: str) -> Record | None:
        def look() -> list[Any]:
            with self.client.pipeline(transaction=True) as pipe:
                pipe.hgetall(name)
                pipe.pttl(name)
                pipe.time()
                return pipe.execute()

        fields, left_ms, (seconds, micros) = self._scripts.patiently(look)
        if not fields:
            return None
        expires_ms = int(seconds) * 1000 + int(micros) // 1000 + left_ms if left_ms >= 0 else 0
        return _record(key, fields, expires_ms)


def _outcome(reply: list[Any], request: ClaimRequest) -> Outcome:
    kind = reply[0]
    if kind == b"C":
        claim = Claim(
            request.key,
            request.owner,
            int(reply[1]),
            request.lease_ms,
            request.retention_ms,
            request.task_id,
            request.attempt,
        )
        steps = {reply[i].decode(): reply[i + 1] for i in range(5, len(reply), 2)}
        return Claimed(claim, steps, reply[2], reply[3], reply[4] == 1)
    if kind == b"D":
        return Done(reply[1], reply[2] == 1, reply[3] == 1, reply[4].decode())
    if kind == b"H":
        return Held(reply[1], reply[2] == 1, reply[3].decode())
    if kind == b"K":
        return Reused(reply[1].decode())
    if kind == b"P":
        return Poison(reply[1])
    if kind == b"R":
        return Revoked()
    return Superseded(reply[1])


def _record(key: str, fields: dict[bytes, bytes], expires_ms: int) -> Record:
    def number(name: bytes) -> int:
        return int(fields.get(name, b"0"))

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode()

    def under(mark: bytes) -> dict[str, bytes]:
        return {name[2:].decode(): v for name, v in fields.items() if name.startswith(mark)}

    return Record(
        key=key,
        state=_STATES[fields.get(b"st", b"f")],
        owner=text(b"ow"),
        fence=number(b"fe"),
        lease_until_ms=number(b"lu"),
        lease_ms=number(b"lm"),
        retention_ms=number(b"rt"),
        fingerprint=text(b"fp"),
        task_id=text(b"id"),
        attempt=number(b"at"),
        runs=number(b"rn"),
        crashes=number(b"cr"),
        failures=number(b"fa"),
        releases=number(b"re"),
        revoked=b"rv" in fields,
        result=fields.get(b"rs"),
        created_ms=number(b"ct"),
        done_ms=number(b"dn"),
        expires_ms=expires_ms,
        steps=under(b"s:"),
        settled=frozenset(under(b"z:")),
        published={task: int(attempt) for task, attempt in under(b"a:").items()},
    )
