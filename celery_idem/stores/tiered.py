"""Redis before the database: a done record found in Redis needs no query, anything else is decided
by the database (S-I7).

Nothing is believed of Redis but that a key is done, which stays true for as long as the record is
kept. So a Redis that was flushed, restarted, evicted or is down costs queries, and no guarantee.

Who read the database before a record was forgotten or settled may write to Redis after it. So a key
that is dropped from Redis is *barred* there for some seconds, in which nobody writes it; and who
took longer than half of them does not write at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_idem.core import protocol
from celery_idem.core.errors import ConfigError, StoreUnavailable
from celery_idem.core.histogram import Histogram, RunCounts
from celery_idem.core.record import (
    Claim,
    Claimed,
    ClaimRequest,
    Done,
    Ending,
    Lease,
    Outcome,
    Record,
    State,
)
from celery_idem.stores import choose
from celery_idem.stores.base import Store
from celery_idem.stores.redis.connection import client_from_url

logger = logging.getLogger("celery_idem.stores.tiered")

#: Seconds for which a cache that failed is not asked again.
REST_S = 5.0
#: Milliseconds for which nobody may write a key that was dropped.
BARRED_MS = 10_000
#: What stands in Redis for a key that is barred; no packed record is like it.
BARRED = b"-"
#: Seconds that the cache may take for an answer.
CACHE_TIMEOUT_S = 0.5
#: Claims of this process whose fingerprint is remembered until they end; above that the cache is
#: filled by the first duplicate instead.
MAX_REMEMBERED = 10_000


class Truth(Store, Protocol):
    """What decides."""

    def look(self, key: str) -> tuple[int, Record | None]:
        """The store's time in milliseconds, and the record as it is or ``None``."""

    def prune(self, limit: int = 1000) -> int:
        """Delete at most so many records that are past their retention; returns how many."""


class DoneCache:
    """Done records in Redis. Never raises: a cache that can't be asked knows nothing, and that is
    logged once for as long as it lasts."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        prefix: str = "idem",
        hash_keys: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self._prefix = prefix
        self._hash_keys = hash_keys
        self._clock = clock
        self._rests_until: float | None = None

    def get(self, key: str) -> Record | None:
        """The done record, or ``None`` when the cache knows of none."""
        packed = self._ask(lambda: self.client.get(self._name(key)))
        return _unpack(key, packed) if packed and packed != BARRED else None

    def put(self, record: Record, for_ms: int, age_ms: int) -> None:
        """Keep it for so long, unless the key is there or barred. ``age_ms``: how old the knowledge
        is; a bar may have come and gone since."""
        if for_ms > 0 and age_ms < BARRED_MS // 2:
            name, packed = self._name(record.key), _pack(record)
            self._ask(lambda: self.client.set(name, packed, px=for_ms, nx=True))

    def drop(self, key: str) -> bool:
        """Forget the key and bar it; ``False`` when the cache could not be asked."""
        name = self._name(key)
        return (
            self._ask(lambda: self.client.set(name, BARRED, px=BARRED_MS), rests=False) is not None
        )

    def close(self) -> None:
        """Let go of connections."""
        self.client.connection_pool.disconnect()

    def _ask(self, call: Callable[[], Any], rests: bool = True) -> Any:
        failing = self._rests_until is not None
        if rests and self._rests_until is not None and self._clock() < self._rests_until:
            return None
        try:
            answer = call()
        except (redis.RedisError, OSError) as error:
            self._rests_until = self._clock() + REST_S
            if not failing:
                logger.warning("done records are not cached for now (%s): slower, not wrong", error)
            return None
        if failing:
            self._rests_until = None
            logger.warning("done records are cached again")
        return answer

    def _name(self, key: str) -> str:
        if self._hash_keys:
            key = hashlib.sha256(key.encode()).hexdigest()
        return f"{self._prefix}:done:{{{key}}}"


class TieredStore:
    """See :class:`celery_idem.stores.base.Store`."""

    def __init__(self, truth: Truth, cache: DoneCache) -> None:
        self.truth = truth
        self.cache = cache
        self._asked: OrderedDict[str, ClaimRequest] = OrderedDict()
        self._lock = threading.Lock()

    def claim(self, request: ClaimRequest) -> Outcome:
        known = self.cache.get(request.key)
        if known is not None:
            return protocol.claim(known, request, 0)[1]  # of a done record: needs no time
        outcome = self.truth.claim(request)
        if isinstance(outcome, Claimed) and outcome.runs == 1:
            # Of a key that ran before, the record may know attempts that this process does not.
            self._remember(request)
        elif isinstance(outcome, Done):
            self._fill(request.key)
        return outcome

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        return self.truth.renew(leases)

    def complete(self, claim: Claim, result: bytes) -> bool:
        started = time.monotonic()
        accepted = self.truth.complete(claim, result)
        request = self._asked.pop(claim.owner, None)
        if accepted and request is not None:
            # Shorter by what the answer took, so that it is over here before it is over there.
            took_ms = int((time.monotonic() - started) * 1000) + 1
            done = _done(claim, request, result)
            self.cache.put(done, claim.retention_ms - took_ms, took_ms)
        return accepted

    def settle(self, key: str, task_id: str) -> None:
        self.cache.drop(key)  # a later duplicate brings the settled record
        self.truth.settle(key, task_id)

    def release(self, claim: Claim, ending: Ending, wait_ms: int = 0) -> bool:
        self._asked.pop(claim.owner, None)
        return self.truth.release(claim, ending, wait_ms)

    def crash(self, key: str, owner: str) -> int | None:
        return self.truth.crash(key, owner)

    def put_step(self, claim: Claim, name: str, value: bytes) -> bool:
        return self.truth.put_step(claim, name, value)

    def revoke(self, key: str, retention_ms: int) -> None:
        self.truth.revoke(key, retention_ms)

    def free(self, key: str) -> bool:
        return self.truth.free(key)

    def forget(self, key: str) -> bool:
        """See :meth:`Store.forget`. Raises :class:`StoreUnavailable`, with nothing forgotten, when
        Redis can't be asked, too."""
        if not self.cache.drop(key):
            raise StoreUnavailable(
                f"{key!r} is not forgotten: Redis can't be asked to forget it, too, and may say "
                "that it is done; say it again when Redis is there"
            )
        forgotten = self.truth.forget(key)
        self.cache.drop(key)  # the bar is whole again, however long the database took
        with self._lock:
            # A holder that still completes writes a record that knows less than its claim did.
            for owner in [o for o, request in self._asked.items() if request.key == key]:
                del self._asked[owner]
        return forgotten

    def get(self, key: str) -> Record | None:
        return self.truth.get(key)

    def scan(self, contains: str = "", limit: int = 1000) -> Iterator[Record]:
        return self.truth.scan(contains, limit)

    def carry(self, counts: RunCounts) -> None:
        self.truth.carry(counts)

    def run_times(self, days: int) -> dict[tuple[str, str], Histogram]:
        return self.truth.run_times(days)

    def prune(self, limit: int = 1000) -> int:
        """Delete expired records of the database; Redis forgets by itself."""
        return self.truth.prune(limit)

    def warnings(self) -> list[str]:
        return self.truth.warnings()

    def close(self) -> None:
        self.truth.close()
        self.cache.close()

    def _remember(self, request: ClaimRequest) -> None:
        with self._lock:
            self._asked[request.owner] = request
            while len(self._asked) > MAX_REMEMBERED:
                self._asked.popitem(last=False)

    def _fill(self, key: str) -> None:
        started = time.monotonic()
        now_ms, record = self.truth.look(key)
        if record is not None and record.state is State.DONE:
            took_ms = int((time.monotonic() - started) * 1000) + 1
            self.cache.put(record, record.expires_ms - now_ms - took_ms, took_ms)


def open_store(around: choose.Surroundings, patience_s: float) -> TieredStore:
    """The factory behind ``idem = {"store": "tiered"}``: the broker's or backend's Redis before
    the Django store. Raises :class:`ConfigError` where there is no Redis."""
    url = choose.redis_url(around)
    if url is None:
        raise ConfigError(
            'idem: store "tiered" is Redis before the database, and neither the broker nor the '
            'result backend is a Redis server; use "django"'
        )
    client = client_from_url(
        url,
        socket_timeout=CACHE_TIMEOUT_S,
        socket_connect_timeout=CACHE_TIMEOUT_S,
        retry=Retry(NoBackoff(), 1),
        **around.redis_options(url),
    )
    truth: Any = choose.named_store("django", around, patience_s)
    return TieredStore(
        truth, DoneCache(client, prefix=around.prefix, hash_keys=around.settings.hash_keys)
    )


def _done(claim: Claim, request: ClaimRequest, result: bytes) -> Record:
    published = {claim.task_id: claim.attempt} if claim.task_id and claim.attempt else {}
    return Record(
        key=claim.key,
        state=State.DONE,
        fence=claim.fence,
        fingerprint=request.fingerprint,
        task_id=claim.task_id,
        attempt=claim.attempt,
        result=result,
        published=published,
    )


def _pack(record: Record) -> bytes:
    head = {
        "fence": record.fence,
        "fingerprint": record.fingerprint,
        "task_id": record.task_id,
        "attempt": record.attempt,
        "settled": sorted(record.settled),
        "published": dict(record.published),
    }
    return json.dumps(head).encode() + b"\n" + (record.result or b"")


def _unpack(key: str, packed: bytes) -> Record:
    head, _, result = packed.partition(b"\n")
    given = json.loads(head)
    return Record(
        key=key,
        state=State.DONE,
        result=result,
        settled=frozenset(given.pop("settled")),
        **given,
    )
