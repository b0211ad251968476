"""The claim state machine to the millisecond. What every store has in common with it, and every
rule in words, is in ``tests/conformance``; here are the times and the properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_idem.core import protocol
from celery_idem.core.record import (
    Claim,
    Claimed,
    ClaimRequest,
    Done,
    Ending,
    Held,
    Lease,
    Poison,
    Record,
    Reused,
    Revoked,
    State,
    Superseded,
)

NOW_MS = 1_000_000
NOW_US = NOW_MS * 1000 + 7
REQUEST = ClaimRequest("k", "me", lease_ms=30_000, retention_ms=90_000, task_id="t1", attempt=1)
RUNNING = Record(
    "k",
    State.RUNNING,
    owner="other",
    fence=50,
    lease_until_ms=NOW_MS + 20_000,
    lease_ms=30_000,
    retention_ms=60_000,
    fingerprint="f",
    task_id="t1",
    attempt=1,
    runs=1,
    created_ms=1,
    expires_ms=NOW_MS + 60_000,
)
MINE = Claim("k", "other", 50, 30_000, 60_000, "t1", 1)


def ask(**changes):
    return replace(REQUEST, **changes)


def seen(**changes):
    return replace(RUNNING, **changes)


CLAIMS = [
    # record, request, outcome's type
    (None, ask(), Claimed),
    (seen(), ask(), Held),
    (seen(), ask(attempt=0), Superseded),
    (seen(), ask(attempt=2), Claimed),
    (seen(crashes=1), ask(attempt=2), Held),
    (seen(attempt=0), ask(attempt=0, task_id="t2"), Held),
    (seen(attempt=9), ask(attempt=0, task_id="t2"), Held),
    (seen(), ask(owner="other"), Claimed),
    (seen(lease_until_ms=NOW_MS), ask(), Claimed),
    (seen(lease_until_ms=NOW_MS + 1), ask(), Held),
    (seen(lease_until_ms=NOW_MS, crashes=2), ask(), Poison),
    (seen(lease_until_ms=NOW_MS, crashes=1), ask(), Claimed),
    (seen(revoked=True), ask(), Revoked),
    (seen(revoked=True), ask(owner="other"), Revoked),
    (seen(), ask(fingerprint="g"), Reused),
    (seen(), ask(fingerprint="g", task_id="t2"), Reused),
    (seen(), ask(fingerprint="g", attempt=2), Claimed),
    (seen(), ask(fingerprint="g", attempt=0), Superseded),
    (seen(state=State.FREE), ask(fingerprint="g"), Claimed),
    (seen(state=State.FREE), ask(attempt=0), Claimed),
    (seen(state=State.FREE, published={"t1": 1}), ask(attempt=0), Superseded),
    (seen(state=State.FREE, published={"t1": 1}), ask(attempt=1), Claimed),
    (seen(state=State.FREE, published={"t1": 1}), ask(attempt=0, task_id="t2"), Claimed),
    (seen(state=State.FREE, crashes=3), ask(), Poison),
    (seen(state=State.FREE, crashes=3), ask(max_crashes=4), Claimed),
    (seen(state=State.FREE, revoked=True), ask(), Revoked),
    (seen(state=State.WAITING), ask(), Claimed),
    (seen(state=State.WAITING), ask(fingerprint="g"), Claimed),
    (seen(state=State.WAITING), ask(task_id="t2"), Held),
    (seen(state=State.WAITING, lease_until_ms=NOW_MS), ask(task_id="t2"), Claimed),
    (seen(state=State.WAITING, crashes=3), ask(), Poison),
    (seen(state=State.DONE), ask(), Done),
    (seen(state=State.DONE, crashes=9, revoked=True), ask(), Done),
    (seen(state=State.DONE), ask(fingerprint="g", task_id="t2"), Reused),
    (seen(state=State.DONE, published={"t1": 2}), ask(), Superseded),
    (seen(state=State.DONE), ask(attempt=0), Done),
]


@pytest.mark.parametrize(("record", "request_", "kind"), CLAIMS)
def test_a_claim_gets_what_the_rules_say(record, request_, kind):
    _, outcome = protocol.claim(record, request_, NOW_US)

    assert type(outcome) is kind


@pytest.mark.parametrize(
    ("record", "request_", "kind"),
    [c for c in CLAIMS if c[2] in (Held, Superseded, Revoked, Reused, Done)],
)
def test_a_claim_that_is_refused_or_answered_leaves_the_record_as_it_is(record, request_, kind):
    after, _ = protocol.claim(record, request_, NOW_US)

    assert after is record


def test_held_says_the_rest_of_the_lease():
    _, outcome = protocol.claim(seen(), ask(), NOW_US)

    assert outcome == Held(20_000, False, "t1")


def test_waiting_says_the_rest_of_the_hold():
    _, outcome = protocol.claim(seen(state=State.WAITING), ask(task_id="t2"), NOW_US)

    assert outcome == Held(20_000, True, "t1")


def test_a_granted_claim_has_all_its_times_from_now():
    record, outcome = protocol.claim(None, ask(fingerprint="g"), NOW_US)

    assert record == Record(
        "k",
        State.RUNNING,
        owner="me",
        fence=NOW_US,
        lease_until_ms=NOW_MS + 30_000,
        lease_ms=30_000,
        retention_ms=90_000,
        fingerprint="g",
        task_id="t1",
        attempt=1,
        runs=1,
        created_ms=NOW_MS,
        expires_ms=NOW_MS + 90_000,
        published={"t1": 1},
    )
    assert outcome == Claimed(Claim("k", "me", NOW_US, 30_000, 90_000, "t1", 1))


def test_a_record_lives_at_least_as_long_as_its_lease():
    record, _ = protocol.claim(None, ask(lease_ms=30_000, retention_ms=1_000), NOW_US)

    assert record.expires_ms == NOW_MS + 30_000


def test_an_owner_that_asks_again_has_its_lease_from_now():
    record, outcome = protocol.claim(seen(), ask(owner="other"), NOW_US)

    assert record == seen(
        lease_until_ms=NOW_MS + 30_000, retention_ms=90_000, expires_ms=NOW_MS + 90_000
    )
    assert outcome == Claimed(replace(MINE, retention_ms=90_000), {}, 0, 1, False)


def test_poison_is_kept_for_the_retention_that_was_asked_for():
    record, outcome = protocol.claim(seen(lease_until_ms=5, crashes=2), ask(), NOW_US)

    assert outcome == Poison(3)
    assert (record.state, record.owner, record.crashes) == (State.FREE, "", 3)
    assert record.expires_ms == NOW_MS + 90_000


def test_a_renewal_lasts_from_now():
    lease = Lease("k", "other", 10_000, 70_000)

    record, held = protocol.renew(seen(), lease, NOW_US)

    assert held is True
    assert record == seen(
        lease_ms=10_000,
        lease_until_ms=NOW_MS + 10_000,
        retention_ms=70_000,
        expires_ms=NOW_MS + 70_000,
    )


def test_a_completion_is_kept_from_now_for_the_claims_retention():
    record, accepted = protocol.complete(seen(), MINE, b"r", NOW_US)

    assert accepted is True
    assert record == seen(
        state=State.DONE,
        result=b"r",
        done_ms=NOW_MS,
        lease_until_ms=0,
        expires_ms=NOW_MS + 60_000,
    )


def test_a_retry_is_waited_for_from_now():
    record, accepted = protocol.release(seen(), MINE, Ending.RETRY, 5_000, NOW_US)

    assert accepted is True
    assert record == seen(
        state=State.WAITING,
        attempt=2,
        failures=1,
        published={"t1": 2},
        lease_until_ms=NOW_MS + 5_000,
        expires_ms=NOW_MS + 65_000,
    )


@pytest.mark.parametrize(("ending", "counter"), [("failure", "failures"), ("release", "releases")])
def test_a_key_given_back_is_kept_for_the_claims_retention(ending, counter):
    record, accepted = protocol.release(seen(), MINE, Ending(ending), 5_000, NOW_US)

    assert accepted is True
    assert record == seen(
        state=State.FREE,
        lease_until_ms=0,
        expires_ms=NOW_MS + 60_000,
        **{counter: 1},
    )


def test_what_puts_a_record_back_knows_all_that_the_holder_knows():
    lease = Lease("k", "other", 30_000, 60_000, "t1", 1)
    gone = Record("k", State.RUNNING, "other", 50, 0, 0, 0, "", "t1", 1, 1, created_ms=NOW_MS)
    held = replace(
        gone,
        lease_ms=30_000,
        retention_ms=60_000,
        lease_until_ms=NOW_MS + 30_000,
        expires_ms=NOW_MS + 60_000,
    )

    assert protocol.renew(None, lease, NOW_US) == (replace(held, fence=NOW_US), True)
    assert protocol.put_step(None, MINE, "s", b"v", NOW_US) == (
        replace(held, steps={"s": b"v"}),
        True,
    )
    assert protocol.complete(None, MINE, b"r", NOW_US) == (
        replace(
            gone,
            state=State.DONE,
            result=b"r",
            done_ms=NOW_MS,
            retention_ms=60_000,
            expires_ms=NOW_MS + 60_000,
        ),
        True,
    )


@pytest.mark.parametrize("ending", list(Ending))
def test_a_key_given_back_twice_is_as_given_back_once(ending):
    once, _ = protocol.release(seen(), MINE, ending, 5_000, NOW_US)

    assert protocol.release(once, MINE, ending, 9_000, NOW_US + 7) == (once, True)


def test_a_revocation_keeps_the_later_of_two_expiries():
    assert protocol.revoke(seen(), "k", 10_000, NOW_US).expires_ms == NOW_MS + 60_000
    assert protocol.revoke(seen(), "k", 70_000, NOW_US).expires_ms == NOW_MS + 70_000
    assert protocol.revoke(None, "k", 70_000, NOW_US) == Record(
        "k", revoked=True, created_ms=NOW_MS, expires_ms=NOW_MS + 70_000
    )


# --- properties

names = st.sampled_from(["", "t1", "t2"])
attempts = st.integers(0, 3)
times_ms = st.integers(NOW_MS - 50, NOW_MS + 50)
records = st.builds(
    Record,
    key=st.just("k"),
    state=st.sampled_from(State),
    owner=st.sampled_from(["", "me", "other"]),
    fence=st.integers(0, 2 * NOW_US),
    lease_until_ms=times_ms,
    lease_ms=st.integers(1, 100),
    retention_ms=st.integers(1, 100),
    fingerprint=st.sampled_from(["", "f", "g"]),
    task_id=names,
    attempt=attempts,
    runs=st.integers(0, 5),
    crashes=st.integers(0, 4),
    revoked=st.booleans(),
    result=st.sampled_from([None, b"", b"r"]),
    published=st.dictionaries(names, attempts, max_size=2),
)
requests = st.builds(
    ClaimRequest,
    key=st.just("k"),
    owner=st.sampled_from(["me", "other"]),
    lease_ms=st.integers(1, 100),
    retention_ms=st.integers(1, 100),
    fingerprint=st.sampled_from(["", "f", "g"]),
    task_id=names,
    attempt=attempts,
    max_crashes=st.integers(1, 4),
)
clocks_us = st.integers(0, 3 * NOW_US)  # a server's clock may also have gone back


@given(records, requests, clocks_us)
def test_a_fence_never_shrinks_whatever_the_clock_does(record, request_, now_us):
    after, outcome = protocol.claim(record, request_, now_us)

    assert after.fence >= record.fence
    if isinstance(outcome, Claimed) and outcome.claim.owner != record.owner:
        assert after.fence > record.fence


@given(records, requests, clocks_us)
def test_a_granted_claim_is_what_the_record_says(record, request_, now_us):
    after, outcome = protocol.claim(record, request_, now_us)

    if isinstance(outcome, Claimed):
        claim = outcome.claim
        assert (after.state, after.owner) == (State.RUNNING, request_.owner)
        assert (claim.owner, claim.fence) == (after.owner, after.fence)
        assert after.crashes < request_.max_crashes or record.owner == request_.owner
        assert after.revoked is False


@given(records, requests, clocks_us)
def test_what_is_done_is_never_granted_again(record, request_, now_us):
    done = replace(record, state=State.DONE)

    after, outcome = protocol.claim(done, request_, now_us)

    assert isinstance(outcome, (Done, Reused, Superseded))
    assert after is done


@given(records, requests, clocks_us, clocks_us)
def test_asking_again_after_a_lost_reply_gives_the_same_claim(record, request_, now_us, later_us):
    after, first = protocol.claim(record, request_, now_us)
    _, second = protocol.claim(after, request_, later_us)

    if isinstance(first, Claimed) and record.owner != request_.owner:
        assert second == replace(first, crashed=False)


@given(records, st.sampled_from(["", "stranger"]), clocks_us)
def test_who_is_not_the_holder_changes_nothing(record, owner, now_us):
    stranger = Claim("k", owner or "stranger", 9**20, 10, 10, "t1", 1)
    lease = Lease("k", stranger.owner, 10, 10)

    assert protocol.renew(record, lease, now_us) == (record, False)
    assert protocol.complete(record, stranger, b"x", now_us) == (record, False)
    assert protocol.put_step(record, stranger, "s", b"x", now_us) == (record, False)
    assert protocol.crash(record, stranger.owner) == (record, None)
    for ending in Ending:
        assert protocol.release(record, stranger, ending, 5, now_us) == (record, False)


@given(records, requests, clocks_us)
def test_every_record_that_a_claim_writes_will_expire(record, request_, now_us):
    after, outcome = protocol.claim(record, request_, now_us)

    if isinstance(outcome, (Claimed, Poison)):
        assert after.expires_ms > now_us // 1000
