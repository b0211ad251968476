"""The whole record after each operation: every field that changes, and that no other does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_idem.core import protocol
from celery_idem.core.record import (
    Claim,
    Claimed,
    ClaimRequest,
    Ending,
    Lease,
    Poison,
    Record,
    State,
)

NOW_MS = 1_000_000
NOW_US = NOW_MS * 1000 + 7
#: every field has a value of its own
HELD = Record(
    key="k",
    state=State.RUNNING,
    owner="w1",
    fence=42,
    lease_until_ms=NOW_MS + 5,
    lease_ms=30,
    retention_ms=500,
    fingerprint="f1",
    task_id="t1",
    attempt=2,
    runs=4,
    crashes=1,
    failures=2,
    releases=3,
    revoked=True,
    created_ms=77,
    expires_ms=NOW_MS + 900,
    steps={"order": b"1"},
    published={"t1": 2, "t0": 1},
)
CLAIM = Claim("k", "w1", 42, 30, 600, "t1", 2)
LEASE = Lease("k", "w1", 40, 600, "t1", 2)
DONE = replace(HELD, state=State.DONE, result=b"paid", done_ms=88, settled=frozenset({"t0"}))


def held(**changes: Any) -> Record:
    return replace(HELD, **changes)


FREED = {"state": State.FREE, "lease_until_ms": 0}
BACK = {**FREED, "expires_ms": NOW_MS + 600}

#: what is done in its test and not before, so that a mutant of it is seen there
AFTER = {
    "free": (lambda: protocol.free(HELD), held(**FREED, owner="", crashes=0, revoked=False)),
    "free of what is done": (lambda: protocol.free(DONE), DONE),
    "crash": (lambda: protocol.crash(HELD, "w1"), (held(**FREED, owner="", crashes=2), 2)),
    "crash of another's": (lambda: protocol.crash(HELD, "w2"), (HELD, None)),
    "crash of nothing": (lambda: protocol.crash(None, "w1"), (None, None)),
    "settle": (
        lambda: protocol.settle(DONE, "t1"),
        replace(DONE, settled=frozenset({"t0", "t1"})),
    ),
    "settle of what runs": (lambda: protocol.settle(HELD, "t1"), HELD),
    "settle of nothing": (lambda: protocol.settle(None, "t1"), None),
    "revoke": (lambda: protocol.revoke(held(revoked=False), "k", 800, NOW_US), held()),
    "revoke for longer": (
        lambda: protocol.revoke(held(revoked=False), "k", 1000, NOW_US),
        held(expires_ms=NOW_MS + 1000),
    ),
    "revoke of nothing": (
        lambda: protocol.revoke(None, "k", 1000, NOW_US),
        Record(key="k", revoked=True, created_ms=NOW_MS, expires_ms=NOW_MS + 1000),
    ),
    "renew": (
        lambda: protocol.renew(HELD, LEASE, NOW_US),
        (
            held(
                lease_ms=40,
                lease_until_ms=NOW_MS + 40,
                retention_ms=600,
                expires_ms=NOW_MS + 600,
            ),
            True,
        ),
    ),
    "renew for longer than the retention": (
        lambda: protocol.renew(HELD, replace(LEASE, lease_ms=700), NOW_US),
        (
            held(
                lease_ms=700,
                lease_until_ms=NOW_MS + 700,
                retention_ms=600,
                expires_ms=NOW_MS + 700,
            ),
            True,
        ),
    ),
    "renew of nothing": (
        lambda: protocol.renew(None, LEASE, NOW_US),
        (
            Record(
                key="k",
                state=State.RUNNING,
                owner="w1",
                fence=NOW_US,
                lease_ms=40,
                lease_until_ms=NOW_MS + 40,
                retention_ms=600,
                task_id="t1",
                attempt=2,
                runs=1,
                created_ms=NOW_MS,
                expires_ms=NOW_MS + 600,
            ),
            True,
        ),
    ),
    "complete": (
        lambda: protocol.complete(HELD, CLAIM, b"paid", NOW_US),
        (
            held(
                state=State.DONE,
                result=b"paid",
                done_ms=NOW_MS,
                lease_until_ms=0,
                retention_ms=600,
                expires_ms=NOW_MS + 600,
            ),
            True,
        ),
    ),
    "complete twice": (lambda: protocol.complete(DONE, CLAIM, b"else", NOW_US), (DONE, True)),
    "complete of nothing": (
        lambda: protocol.complete(None, CLAIM, b"paid", NOW_US),
        (
            Record(
                key="k",
                state=State.DONE,
                owner="w1",
                fence=42,
                retention_ms=600,
                task_id="t1",
                attempt=2,
                runs=1,
                result=b"paid",
                created_ms=NOW_MS,
                done_ms=NOW_MS,
                expires_ms=NOW_MS + 600,
            ),
            True,
        ),
    ),
    "release after a failure": (
        lambda: protocol.release(HELD, CLAIM, Ending.FAILURE, 0, NOW_US),
        (held(**BACK, failures=3), True),
    ),
    "release on purpose": (
        lambda: protocol.release(HELD, CLAIM, Ending.RELEASE, 0, NOW_US),
        (held(**BACK, releases=4), True),
    ),
    "release for a retry": (
        lambda: protocol.release(HELD, CLAIM, Ending.RETRY, 50, NOW_US),
        (
            held(
                state=State.WAITING,
                attempt=3,
                failures=3,
                published={"t1": 3, "t0": 1},
                lease_until_ms=NOW_MS + 50,
                expires_ms=NOW_MS + 650,
            ),
            True,
        ),
    ),
    "release of nothing": (
        lambda: protocol.release(None, CLAIM, Ending.RETRY, 50, NOW_US),
        (None, True),
    ),
    "a step": (
        lambda: protocol.put_step(HELD, CLAIM, "mail", b"2", NOW_US),
        (held(steps={"order": b"1", "mail": b"2"}), True),
    ),
    "a step of nothing": (
        lambda: protocol.put_step(None, CLAIM, "mail", b"2", NOW_US),
        (
            Record(
                key="k",
                state=State.RUNNING,
                owner="w1",
                fence=42,
                lease_ms=30,
                lease_until_ms=NOW_MS + 30,
                retention_ms=600,
                task_id="t1",
                attempt=2,
                runs=1,
                created_ms=NOW_MS,
                expires_ms=NOW_MS + 600,
                steps={"mail": b"2"},
            ),
            True,
        ),
    ),
}


@pytest.mark.parametrize(("done", "should_be"), AFTER.values(), ids=AFTER)
def test_after_an_operation_the_whole_record_is(done, should_be):
    assert done() == should_be


REQUEST = ClaimRequest("k", "w2", 60, 550, "f2", "t2", 1, 3)


def test_a_first_claim_writes_the_whole_record():
    record, outcome = protocol.claim(None, REQUEST, NOW_US)

    assert record == Record(
        key="k",
        state=State.RUNNING,
        owner="w2",
        fence=NOW_US,
        lease_until_ms=NOW_MS + 60,
        lease_ms=60,
        retention_ms=550,
        fingerprint="f2",
        task_id="t2",
        attempt=1,
        runs=1,
        created_ms=NOW_MS,
        expires_ms=NOW_MS + 550,
        published={"t2": 1},
    )
    assert outcome == Claimed(Claim("k", "w2", NOW_US, 60, 550, "t2", 1), {}, 0, 1, False)


def test_a_claim_that_takes_over_keeps_what_it_does_not_change():
    before = held(revoked=False, lease_until_ms=NOW_MS, fence=NOW_US + 10, fingerprint="")

    record, outcome = protocol.claim(before, REQUEST, NOW_US)

    assert record == replace(
        before,
        owner="w2",
        fence=NOW_US + 11,
        lease_until_ms=NOW_MS + 60,
        lease_ms=60,
        retention_ms=550,
        fingerprint="f2",
        task_id="t2",
        attempt=1,
        runs=5,
        crashes=2,
        published={"t1": 2, "t0": 1, "t2": 1},
        expires_ms=NOW_MS + 550,
    ), outcome
    claim = Claim("k", "w2", NOW_US + 11, 60, 550, "t2", 1)
    assert outcome == Claimed(claim, {"order": b"1"}, 2, 5, True)


def test_an_owner_that_asks_again_gets_what_it_had_with_its_lease_renewed():
    request = ClaimRequest("k", "w1", 60, 600, "f1", "t1", 2, 3)

    record, outcome = protocol.claim(held(revoked=False), request, NOW_US)

    assert record == held(
        revoked=False,
        lease_ms=60,
        lease_until_ms=NOW_MS + 60,
        retention_ms=600,
        expires_ms=NOW_MS + 600,
    )
    claim = Claim("k", "w1", 42, 60, 600, "t1", 2)
    assert outcome == Claimed(claim, {"order": b"1"}, 1, 4, False)


def test_a_poisoned_key_is_free_and_kept_for_the_asking_tasks_retention():
    before = held(revoked=False, lease_until_ms=NOW_MS, crashes=2, fingerprint="f2")

    record, outcome = protocol.claim(before, REQUEST, NOW_US)

    freed = {"state": State.FREE, "owner": "", "lease_until_ms": 0, "crashes": 3}
    assert record == replace(before, **freed, retention_ms=550, expires_ms=NOW_MS + 550)
    assert outcome == Poison(3)
