"""How the tests of this folder ask: a claim with everything that a test doesn't care about."""

from __future__ import annotations

from typing import Any

from celery_idem.core.record import Claim, Claimed, ClaimRequest, Lease, ResultKind, StoredResult
from celery_idem.stores.base import Store

KEY = "tests.pay:order:1"
#: a lease, hold or retention that ends in a test, once the clock has passed it; no test needs it
#: to last
SHORT_MS = 60
#: a lease, a hold or a retention that doesn't end in a test
LONG_MS = 3_600_000

RESULT = StoredResult(ResultKind.INLINE, "application/json", "utf-8", b'{"paid":true}').pack()
OTHER_RESULT = StoredResult(ResultKind.INLINE, "application/json", "utf-8", b'"else"').pack()


def ask(key: str = KEY, owner: str = "worker-1", **given: Any) -> ClaimRequest:
    """A request; by default for an hour, of task ``t1``, its first attempt."""
    fields = {"lease_ms": LONG_MS, "retention_ms": LONG_MS, "task_id": "t1", **given}
    return ClaimRequest(key=key, owner=owner, **fields)


def take(store: Store, key: str = KEY, owner: str = "worker-1", **given: Any) -> Claim:
    """The claim, which must be granted."""
    outcome = store.claim(ask(key, owner, **given))
    assert isinstance(outcome, Claimed), outcome
    return outcome.claim


def crash_times(store: Store, times: int, key: str = KEY, **given: Any) -> None:
    """Let so many claims end by a lost process."""
    for n in range(times):
        claim = take(store, key, f"crashed-{n}", **given)
        assert store.crash(key, claim.owner) is not None


def lease_of(claim: Claim) -> Lease:
    return Lease(
        claim.key, claim.owner, claim.lease_ms, claim.retention_ms, claim.task_id, claim.attempt
    )
