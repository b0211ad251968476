"""The contract of a store. One conformance suite (``tests/conformance``) holds every store to it.

A store keeps one :class:`~celery_idem.core.record.Record` per key and applies the functions of
:mod:`celery_idem.core.protocol` to it, each atomically, each by the store's own clock. Callers may
repeat any call whose reply was lost: every operation is safe to say twice.

Errors: a store that can't be reached raises :class:`~celery_idem.core.errors.StoreUnavailable`
(after its own short retries). Nothing else is raised for a well-formed call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from celery_idem.core.histogram import Histogram, RunCounts
from celery_idem.core.record import Claim, ClaimRequest, Ending, Lease, Outcome, Record

#: Days for which run times are kept, at least.
RUN_TIMES_DAYS = 35


@runtime_checkable
class Store(Protocol):
    """Claims, records and steps of keys."""

    def claim(self, request: ClaimRequest) -> Outcome:
        """Ask for the right to run the work of a key now. One round trip.

        Counts the crash of an expired claim and grants the next one in the same step, before any
        user code runs.
        """

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        """Extend leases from now, all of them in one round trip; ``False`` for those lost."""

    def complete(self, claim: Claim, result: bytes) -> bool:
        """Record the packed result. ``False``: the claim was lost, nothing was changed."""

    def settle(self, key: str, task_id: str) -> None:
        """Note that this task id's follow-ups were handed on. Nothing unless the key is done."""

    def release(self, claim: Claim, ending: Ending, wait_ms: int = 0) -> bool:
        """Give the key back. ``RETRY`` holds it for ``wait_ms`` for the published attempt."""

    def crash(self, key: str, owner: str) -> int | None:
        """Free the claim of a process known to be gone and count it; ``None``: it held nothing."""

    def put_step(self, claim: Claim, name: str, value: bytes) -> bool:
        """Record a step of a running claim. ``False``: the claim was lost."""

    def revoke(self, key: str, retention_ms: int) -> None:
        """Never grant this key again, for at least ``retention_ms``; durable."""

    def free(self, key: str) -> bool:
        """An operator frees a key that isn't done: its claim, crashes and revocation are
        forgiven, its steps stay. ``False``: there is no such record, or it is done."""

    def forget(self, key: str) -> bool:
        """Delete the record. Fences of later claims are still above those of earlier ones."""

    def get(self, key: str) -> Record | None:
        """The record as it is, or ``None``. For people and tests, not for decisions."""

    def scan(self, contains: str = "", limit: int = 1000) -> Iterator[Record]:
        """Records whose key contains the text, in no order. Never blocks the server."""

    def carry(self, counts: RunCounts) -> None:
        """Take these run times along with a later call that goes to the server anyway: no round
        trip of their own. Never raises; they are lost when that call is."""

    def run_times(self, days: int) -> dict[tuple[str, str], Histogram]:
        """(task name, lane or queue) → run times that were carried today (UTC, by the clocks of
        the workers) and in the ``days - 1`` days before; kept for :data:`RUN_TIMES_DAYS`."""

    def warnings(self) -> list[str]:
        """What about this server could lose records (eviction, …), one sentence each."""

    def close(self) -> None:
        """Let go of connections. The store may be used again; it connects anew."""
