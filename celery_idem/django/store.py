"""Records in the project's database: the truth that survives what Redis does not (S-I6).

Every operation reads the row and the database's time in one statement, asks
:mod:`celery_idem.core.protocol` what becomes of it, and writes that with one conditional
statement: ``UPDATE … WHERE version = <the one seen>``, or an ``INSERT`` that somebody else's row
refuses. Whoever comes second reads again. No row is locked while anything is decided.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError

from celery_idem.core import protocol
from celery_idem.core.errors import StoreUnavailable
from celery_idem.core.histogram import Histogram, RunCounts, days_back, merged, today
from celery_idem.core.key import REVOKED_TASK
from celery_idem.core.record import Claim, Claimed, ClaimRequest, Ending, Lease, Outcome, Record
from celery_idem.core.settings import DEFAULT_STORE_PATIENCE_S
from celery_idem.django import rows, run_times
from celery_idem.django.connections import Connections, Transaction
from celery_idem.django.models import InboxEntry, KeyRecord, digest_of
from celery_idem.stores.base import RUN_TIMES_DAYS

logger = logging.getLogger("celery_idem.django")

T = TypeVar("T")
Keyed = TypeVar("Keyed", Claim, ClaimRequest, Lease)
Decision = Callable[[Record | None, int], tuple[Record | None, T]]

#: Times that one operation reads again because somebody else wrote the row in between. Each time
#: somebody got on, so this many means that a key is fought over by hundreds.
MAX_CONFLICTS = 500
#: Longest pause before it reads again, in seconds.
CONFLICT_PAUSE_S = 0.02
#: How long the row of a record that is over stays, at least: it keeps the highest fence of its key
#: from those who looked before it was over, and have not written yet.
PRUNE_AFTER_MS = 60_000


class DjangoStore:
    """See :class:`celery_idem.stores.base.Store`.

    ``alias``: the database. ``patience_s``: how long a call is tried again while that can't be
    reached; then :class:`StoreUnavailable`. The store has connections of its own, so a claim
    commits whatever transaction is open around it. On SQLite, which has one writer, it refuses
    with a clear error where a transaction of its own thread is in the way. ``hash_keys`` keeps a
    SHA-256 instead of the key, for keys that hold what must not be read in the database.
    """

    def __init__(
        self,
        alias: str = DEFAULT_DB_ALIAS,
        *,
        hash_keys: bool = False,
        patience_s: float = DEFAULT_STORE_PATIENCE_S,
    ) -> None:
        self.alias = alias
        self._hash_keys = hash_keys
        self._connections = Connections(alias, patience_s)
        self._carried: deque[RunCounts] = deque()

    def claim(self, request: ClaimRequest) -> Outcome:
        kept = self._kept(request)

        def decide(record: Record | None, now_us: int) -> tuple[Record, Outcome]:
            return protocol.claim(record, kept, now_us)

        def run(connection: Any) -> Outcome:
            def with_steps(outcome: Outcome, step_count: int) -> Outcome:
                if not isinstance(outcome, Claimed):
                    return outcome
                steps = rows.steps(connection, digest_of(kept.key)) if step_count else {}
                return replace(outcome, claim=replace(outcome.claim, key=request.key), steps=steps)

            return _change(connection, kept.key, decide, with_steps)

        return self._call(run)

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        if not leases:
            return []
        return self._call(
            lambda connection: _renew(connection, [self._kept(lease) for lease in leases])
        )

    def complete(self, claim: Claim, result: bytes) -> bool:
        kept = self._kept(claim)
        return self._decide(
            kept.key, lambda record, now_us: protocol.complete(record, kept, result, now_us)
        )

    def settle(self, key: str, task_id: str) -> None:
        self._decide(
            self._name(key), lambda record, now_us: (protocol.settle(record, task_id), None)
        )

    def release(self, claim: Claim, ending: Ending, wait_ms: int = 0) -> bool:
        kept = self._kept(claim)
        return self._decide(
            kept.key,
            lambda record, now_us: protocol.release(record, kept, ending, wait_ms, now_us),
        )

    def crash(self, key: str, owner: str) -> int | None:
        return self._decide(self._name(key), lambda record, now_us: protocol.crash(record, owner))

    def put_step(self, claim: Claim, name: str, value: bytes) -> bool:
        kept = self._kept(claim)
        return self._decide(
            kept.key,
            lambda record, now_us: protocol.put_step(record, kept, name, value, now_us),
        )

    def revoke(self, key: str, retention_ms: int) -> None:
        name = self._name(key)
        self._decide(
            name, lambda record, now_us: (protocol.revoke(record, name, retention_ms, now_us), None)
        )

    def free(self, key: str) -> bool:
        def decide(record: Record | None, now_us: int) -> tuple[Record | None, bool]:
            after = protocol.free(record)
            return after, after is not record

        return self._decide(self._name(key), decide)

    def forget(self, key: str) -> bool:
        def decide(record: Record | None, now_us: int) -> tuple[Record | None, bool]:
            return None if record is None else _forgotten(record, now_us), record is not None

        return self._decide(self._name(key), decide)

    def get(self, key: str) -> Record | None:
        return self.look(key)[1]

    def look(self, key: str) -> tuple[int, Record | None]:
        """The database's time in milliseconds, and the record as it is or ``None``."""
        digest = digest_of(self._name(key))

        def run(connection: Any) -> tuple[int, Record | None]:
            now_us, found = rows.read(connection, [digest])
            row = found.get(digest)
            if row is None or _is_over(row.record, now_us):
                return now_us // 1000, None
            return now_us // 1000, replace(_with_steps(connection, digest, row), key=key)

        return self._connections.patiently(run)

    def scan(self, contains: str = "", limit: int = 1000) -> Iterator[Record]:
        def run(connection: Any) -> list[Record]:
            now_ms = rows.clock_ms(connection)
            return [
                _with_steps(connection, digest, row)
                for digest, row in rows.search(connection, contains, now_ms, limit)
            ]

        yield from self._connections.patiently(run)

    def carry(self, counts: RunCounts) -> None:
        if counts:
            self._carried.append(counts)

    def run_times(self, days: int) -> dict[tuple[str, str], Histogram]:
        return self._connections.patiently(
            lambda connection: merged(run_times.read(connection, days_back(days).start))
        )

    def prune(self, limit: int = 1000) -> int:
        """Delete at most ``limit`` records that have been past their retention for a minute, with
        their steps, and as many entries of this database's inbox; and old run times. Returns how
        many; 0: nothing is left to do."""

        def run(connection: Any) -> int:
            now_ms = rows.clock_ms(connection) - PRUNE_AFTER_MS
            entries = rows.expired(connection, InboxEntry, now_ms, limit)
            gone = rows.delete(connection, entries, now_ms, model=InboxEntry) if entries else 0
            for digest in rows.expired(connection, KeyRecord, now_ms, limit):
                gone += _prune_one(connection, digest, now_ms)
            oldest = days_back(RUN_TIMES_DAYS).start
            return gone + run_times.delete_before(connection, oldest, limit)

        return self._connections.patiently(run)

    def warnings(self) -> list[str]:
        self._connections.patiently(rows.clock_ms)
        if self._connections.vendor == "sqlite":
            return [
                "records are kept in SQLite, which has one writer at a time: good for trying out "
                "and for one machine with little to do, not for many workers"
            ]
        return []

    def close(self) -> None:
        self._connections.close()

    def _name(self, key: str) -> str:
        hidden = self._hash_keys and not key.startswith(REVOKED_TASK)
        return digest_of(key) if hidden else key

    def _kept(self, keyed: Keyed) -> Keyed:
        return replace(keyed, key=self._name(keyed.key)) if self._hash_keys else keyed

    def _decide(self, key: str, decide: Decision[T]) -> T:
        return self._call(lambda connection: _change(connection, key, decide))

    def _call(self, attempt: Callable[[Any], T]) -> T:
        """Patiently; run times that wait go on the same connection after it."""

        def run(connection: Any) -> T:
            answer = attempt(connection)
            if self._carried:
                self._deliver(connection)
            return answer

        return self._connections.patiently(run)

    def _deliver(self, connection: Any) -> None:
        try:
            run_times.add(connection, self._carried.popleft(), today())
        except IndexError:
            pass  # another thread was faster
        except (DatabaseError, InterfaceError) as error:
            logger.debug("run times were not kept: %s", error)


def open_store(around: Any, patience_s: float) -> DjangoStore:
    """The factory behind ``idem = {"store": "django"}``."""
    return DjangoStore(hash_keys=around.settings.hash_keys, patience_s=patience_s)


def _change(
    connection: Any,
    key: str,
    decide: Decision[T],
    completed: Callable[[T, int], T] = lambda answer, step_count: answer,
) -> T:
    """Read, decide, write if nobody else has written; again if somebody has.

    ``completed`` makes the answer whole before anything is written, from how many steps the record
    may have: what it reads is as old as the record, or the write is refused.
    """
    digest = digest_of(key)
    for tries in range(MAX_CONFLICTS):
        now_us, found = rows.read(connection, [digest])
        row = found.get(digest)
        seen = row.record if row is not None and not _is_over(row.record, now_us) else None
        if row is not None and seen is None:
            now_us = max(now_us, row.record.fence + 1)  # above the fences of what is over, too
        after, answer = decide(seen, now_us)
        step_count = row.step_count if row is not None and seen is not None else 0
        answer = completed(answer, step_count)
        if after is None or after is seen:
            return answer
        step_count = 0 if _is_over(after, now_us) else step_count + len(after.steps)
        if _write(connection, row, seen, after, step_count):
            return answer
        time.sleep(random.uniform(0, min(0.001 * tries, CONFLICT_PAUSE_S)))
    raise StoreUnavailable(
        f"{key!r} was written by others {MAX_CONFLICTS} times while this process tried to"
    )


def _forgotten(record: Record, now_us: int) -> Record:
    """What is left of a record that is forgotten, until it is pruned: a row that is over. It keeps
    the fence, and refuses what others decided when they saw the record."""
    return Record(key=record.key, fence=record.fence, expires_ms=now_us // 1000)


def _write(
    connection: Any, row: rows.Row | None, seen: Record | None, after: Record, step_count: int
) -> bool:
    """The one conditional statement; in a transaction only where steps change with it.

    Records are read without their steps, so the steps that ``after`` has are new.
    """
    leftovers = row is not None and row.step_count > 0 and (seen is None or step_count == 0)
    if not after.steps and not leftovers:
        return _write_record(connection, row, after, step_count)
    with Transaction(connection) as work:
        # First: it locks the row until the steps are written, too.
        if not _write_record(connection, row, after, step_count):
            work.undo()
            return False
        if leftovers:
            rows.delete_steps(connection, [digest_of(after.key)])
        for name, value in after.steps.items():
            rows.put_step(connection, after.key, name, value)
    return True


def _write_record(connection: Any, row: rows.Row | None, after: Record, step_count: int) -> bool:
    if row is None:
        return rows.insert(connection, after, step_count)
    return rows.update(connection, row, after, step_count)


def _renew(connection: Any, leases: Sequence[Lease]) -> list[bool]:
    """One statement reads all of them, one writes each; whoever lost a race reads its own again."""
    digests = [digest_of(lease.key) for lease in leases]
    now_us, found = rows.read(connection, digests)
    answers = []
    for lease, digest in zip(leases, digests, strict=True):
        row = found.pop(digest, None)  # a key that is asked for twice is read again
        if row is not None and not _is_over(row.record, now_us):
            after, held = protocol.renew(row.record, lease, now_us)
            if after is row.record:
                answers.append(held)
                continue
            if after is not None and rows.update(connection, row, after, row.step_count):
                answers.append(held)
                continue
        answers.append(_change(connection, lease.key, _renewing(lease)))
    return answers


def _renewing(lease: Lease) -> Decision[bool]:
    return lambda record, now_us: protocol.renew(record, lease, now_us)


def _prune_one(connection: Any, digest: str, now_ms: int) -> int:
    with Transaction(connection):
        gone = rows.delete(connection, [digest], now_ms)
        if gone:
            rows.delete_steps(connection, [digest])
    return gone


def _with_steps(connection: Any, digest: str, row: rows.Row) -> Record:
    return replace(row.record, steps=rows.steps(connection, digest) if row.step_count else {})


def _is_over(record: Record, now_us: int) -> bool:
    """Forgotten, or past its retention. A statement's time may lie before that of a row it reads,
    so a forgotten record is known by what it lacks, not by a time."""
    return not record.created_ms or 0 < record.expires_ms <= now_us // 1000
