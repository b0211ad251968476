"""The claim state machine to the millisecond: which outcome, and the properties. The whole record
after each operation is in ``test_protocol_whole.py``; what every store has in common with it, and
every rule in words, in ``tests/conformance``."""

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


def test_a_record_lives_at_least_as_long_as_its_lease():
    record, _ = protocol.claim(None, ask(lease_ms=30_000, retention_ms=1_000), NOW_US)

    assert record.expires_ms == NOW_MS + 30_000


@pytest.mark.parametrize("ending", list(Ending))
def test_a_key_given_back_twice_is_as_given_back_once(ending):
    once, _ = protocol.release(seen(), MINE, ending, 5_000, NOW_US)

    assert protocol.release(once, MINE, ending, 9_000, NOW_US + 7) == (once, True)


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


def test_a_lease_longer_than_its_own_length_is_of_a_clock_that_went_back_and_begins_anew():
    record, outcome = protocol.claim(
        seen(lease_until_ms=NOW_MS + 30_001),
        ask(owner="else", task_id="t2", fingerprint=""),
        NOW_US,
    )

    assert outcome == Held(30_000, False, "t1")
    assert record == seen(lease_until_ms=NOW_MS + 30_000)


def test_a_lease_of_its_whole_length_is_left_as_it_is():
    longest = seen(lease_until_ms=NOW_MS + 30_000)

    record, outcome = protocol.claim(
        longest, ask(owner="else", task_id="t2", fingerprint=""), NOW_US
    )

    assert outcome == Held(30_000, False, "t1")
    assert record is longest
