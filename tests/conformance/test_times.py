"""Every time in a record is the store's own clock's, and a record is kept as long as is said."""

from __future__ import annotations

from typing import Any

import pytest

from celery_idem.core.record import Claim, Ending, Lease
from tests.conformance.asking import KEY, LONG_MS, RESULT, take
from tests.conformance.registry import HandClock

LEASE_MS, RETENTION_MS, WAIT_MS = LONG_MS, 7 * LONG_MS, 3 * LONG_MS
CLAIM = Claim(KEY, "w", 1, LEASE_MS, RETENTION_MS, "t1", 0)
SHORT_KEPT = Claim(KEY, "w", 1, RETENTION_MS, LEASE_MS, "t1", 0)
#: what a look at the time of a record that the server counts down may differ by, in milliseconds
LOOK_MS = 2


def leases(claim: Claim) -> list[Lease]:
    return [Lease(KEY, "w", claim.lease_ms, claim.retention_ms, "t1", 0)]


def held(store: Any) -> Claim:
    return take(store, owner="w", lease_ms=LEASE_MS, retention_ms=LONG_MS)


#: what is done → (fields → how far after now they lie), on a record that is there or is not
HELD = {
    "renew": (
        lambda store: store.renew(leases(CLAIM)),
        {"lease_until_ms": LEASE_MS, "expires_ms": RETENTION_MS},
    ),
    "renew for longer than it is kept": (
        lambda store: store.renew(leases(SHORT_KEPT)),
        {"lease_until_ms": RETENTION_MS, "expires_ms": RETENTION_MS},
    ),
    "complete": (
        lambda store: store.complete(CLAIM, RESULT),
        {"done_ms": 0, "expires_ms": RETENTION_MS},
    ),
    "release for a retry": (
        lambda store: store.release(CLAIM, Ending.RETRY, WAIT_MS),
        {"lease_until_ms": WAIT_MS, "expires_ms": WAIT_MS + RETENTION_MS},
    ),
    "release after a failure": (
        lambda store: store.release(CLAIM, Ending.FAILURE),
        {"expires_ms": RETENTION_MS},
    ),
    "revoke for longer than it is kept": (
        lambda store: store.revoke(KEY, RETENTION_MS),
        {"expires_ms": RETENTION_MS},
    ),
    "revoke for shorter than it is kept": (
        lambda store: store.revoke(KEY, 1),
        {"expires_ms": LONG_MS},
    ),
}
MISSING = {
    "renew": (
        lambda store: store.renew(leases(CLAIM)),
        {"created_ms": 0, "lease_until_ms": LEASE_MS, "expires_ms": RETENTION_MS},
    ),
    "complete": (
        lambda store: store.complete(CLAIM, RESULT),
        {"created_ms": 0, "done_ms": 0, "expires_ms": RETENTION_MS},
    ),
    "put_step": (
        lambda store: store.put_step(CLAIM, "step", b"1"),
        {"created_ms": 0, "lease_until_ms": LEASE_MS, "expires_ms": RETENTION_MS},
    ),
    "put_step for longer than it is kept": (
        lambda store: store.put_step(SHORT_KEPT, "step", b"1"),
        {"lease_until_ms": RETENTION_MS, "expires_ms": RETENTION_MS},
    ),
    "revoke": (
        lambda store: store.revoke(KEY, RETENTION_MS),
        {"created_ms": 0, "expires_ms": RETENTION_MS},
    ),
}


@pytest.mark.parametrize(("act", "times"), HELD.values(), ids=HELD)
def test_times_of_a_record_that_is_there(store, clock, act, times):
    begun_ms = now_ms(clock)
    held(store)

    check(store, clock, act, times, begun_ms if act is HELD_SHORTER else None)


@pytest.mark.parametrize(("act", "times"), MISSING.values(), ids=MISSING)
def test_times_of_a_record_that_is_put_back_or_new(store, clock, act, times):
    check(store, clock, act, times)


def test_a_revocation_does_not_change_when_a_record_was_made(store, clock):
    held(store)
    before = store.get(KEY)
    clock.pass_ms(2)

    store.revoke(KEY, RETENTION_MS)

    assert store.get(KEY).created_ms == before.created_ms


HELD_SHORTER = HELD["revoke for shorter than it is kept"][0]


def check(store: Any, clock: Any, act: Any, times: Any, begun_ms: int | None = None) -> None:
    """``begun_ms``: where it is the claim before that the times count from."""
    before_ms = now_ms(clock) if begun_ms is None else begun_ms

    act(store)

    after_ms = now_ms(clock)
    record = store.get(KEY)
    for field, later_ms in times.items():
        at_ms = getattr(record, field) - later_ms
        assert before_ms - LOOK_MS <= at_ms <= after_ms + LOOK_MS, field


def now_ms(clock: Any) -> int:
    return clock.now_us() // 1000 if isinstance(clock, HandClock) else clock._read_ms()
