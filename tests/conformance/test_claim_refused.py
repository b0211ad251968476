"""What a claim gets that meets a holder, a retry on its way, or poison; and its fence."""

from __future__ import annotations

import pytest

from celery_idem.core.record import (
    Claimed,
    Ending,
    Held,
    Poison,
    State,
)
from tests.conformance.asking import (
    KEY,
    LONG_MS,
    RESULT,
    SHORT_MS,
    ask,
    crash_times,
    take,
)

# --- 5: held, with its three exceptions


def test_an_owner_that_asks_again_gets_its_claim_again(store):
    first = store.claim(ask(owner="w", fingerprint="f"))

    again = store.claim(ask(owner="w", fingerprint="f"))

    assert isinstance(again, Claimed)
    assert again.claim == first.claim
    assert (again.runs, again.crashes, again.crashed) == (1, 0, False)


def test_an_owner_that_asks_again_gets_its_steps(store):
    claim = take(store, owner="w")
    store.put_step(claim, "email", b"sent")

    assert dict(store.claim(ask(owner="w")).steps) == {"email": b"sent"}


def test_an_owner_that_asks_again_after_its_lease_still_has_it_if_nobody_took_it(store, clock):
    first = take(store, owner="w", lease_ms=SHORT_MS)
    clock.pass_ms(SHORT_MS)

    again = store.claim(ask(owner="w", lease_ms=SHORT_MS))

    assert isinstance(again, Claimed)
    assert (again.claim.fence, again.crashes) == (first.fence, 0)


def test_an_owner_that_asks_again_has_its_lease_and_retention_from_then_on(store, clock):
    take(store, owner="w", task_id="t1", lease_ms=SHORT_MS, retention_ms=LONG_MS)
    before = store.get(KEY)
    clock.pass_ms(SHORT_MS)

    take(store, owner="w", task_id="t1", lease_ms=2 * LONG_MS, retention_ms=4 * LONG_MS)

    after = store.get(KEY)
    assert (after.lease_ms, after.retention_ms) == (2 * LONG_MS, 4 * LONG_MS)
    assert after.lease_until_ms - before.lease_until_ms > LONG_MS
    assert after.expires_ms - before.expires_ms > 2 * LONG_MS
    assert isinstance(store.claim(ask(owner="w2", task_id="t2")), Held)


def test_an_owner_that_asks_again_after_it_lost_the_key_is_held(store, clock):
    take(store, owner="w", task_id="t1", lease_ms=SHORT_MS)
    clock.pass_ms(SHORT_MS)
    take(store, owner="w2", task_id="t2")

    assert isinstance(store.claim(ask(owner="w", task_id="t1")), Held)


def test_a_newer_attempt_of_the_same_task_takes_over_without_a_crash(store):
    old = take(store, owner="w1", task_id="t1", attempt=0)

    outcome = store.claim(ask(owner="w2", task_id="t1", attempt=1))

    assert isinstance(outcome, Claimed)
    assert (outcome.crashes, outcome.crashed, outcome.runs) == (0, False, 2)
    assert outcome.claim.fence > old.fence


def test_a_newer_attempt_does_not_take_over_from_a_holder_that_follows_a_crash(store):
    """The one that crashed may have published it; the holder is at work."""
    take(store, owner="w1", task_id="t1", attempt=0)
    store.crash(KEY, "w1")
    take(store, owner="w2", task_id="t1", attempt=0)

    assert isinstance(store.claim(ask(owner="w3", task_id="t1", attempt=1)), Held)


def test_a_newer_attempt_of_another_task_does_not_take_over(store):
    take(store, owner="w1", task_id="t1", attempt=0)

    assert isinstance(store.claim(ask(owner="w2", task_id="t2", attempt=1)), Held)


def test_a_lease_that_is_over_is_taken_over_and_counted_as_a_crash(store, clock):
    old = take(store, owner="w1", task_id="t1", lease_ms=SHORT_MS)
    clock.pass_ms(SHORT_MS)

    outcome = store.claim(ask(owner="w2", task_id="t1"))

    assert isinstance(outcome, Claimed)
    assert (outcome.crashes, outcome.crashed, outcome.runs) == (1, True, 2)
    assert outcome.claim.fence > old.fence
    record = store.get(KEY)
    assert (record.owner, record.crashes, record.failures, record.releases) == ("w2", 1, 0, 0)


def test_a_take_over_brings_the_steps_of_the_crashed_run(store, clock):
    claim = take(store, owner="w1", lease_ms=SHORT_MS)
    store.put_step(claim, "order", b"1")
    store.put_step(claim, "email", b"")
    clock.pass_ms(SHORT_MS)

    assert dict(store.claim(ask(owner="w2")).steps) == {"order": b"1", "email": b""}


# --- 6: waiting for a retry


def test_a_key_that_waits_for_a_retry_is_held_for_it(store):
    store.release(take(store, task_id="t1"), Ending.RETRY, LONG_MS)

    outcome = store.claim(ask(owner="w2", task_id="t2"))

    assert isinstance(outcome, Held)
    assert 0 < outcome.remaining_ms <= LONG_MS
    assert (outcome.waiting, outcome.task_id) == (True, "t1")


def test_a_key_whose_retry_did_not_come_in_time_goes_to_another_task(store, clock):
    store.release(take(store, task_id="t1"), Ending.RETRY, SHORT_MS)
    clock.pass_ms(SHORT_MS)

    outcome = store.claim(ask(owner="w2", task_id="t2"))

    assert isinstance(outcome, Claimed)
    assert (outcome.crashes, outcome.crashed) == (0, False)


def test_a_retry_that_comes_late_still_runs(store, clock):
    store.release(take(store, task_id="t1"), Ending.RETRY, SHORT_MS)
    clock.pass_ms(SHORT_MS)

    assert isinstance(store.claim(ask(owner="w2", task_id="t1", attempt=1)), Claimed)


# --- 7: poison


def test_the_claim_after_the_last_allowed_crash_is_poison(store):
    crash_times(store, 3)

    assert store.claim(ask(owner="w", max_crashes=3)) == Poison(3)
    assert store.get(KEY).runs == 3


def test_expired_leases_make_poison_too(store, clock):
    for n in range(3):
        take(store, owner=f"w{n}", lease_ms=SHORT_MS)
        clock.pass_ms(SHORT_MS)

    assert store.claim(ask(owner="w", max_crashes=3)) == Poison(3)
    assert store.get(KEY).state is State.FREE


def test_poison_is_said_again_to_everybody_who_asks(store, clock):
    take(store, owner="w0", lease_ms=SHORT_MS)
    clock.pass_ms(SHORT_MS)

    assert store.claim(ask(owner="w1", max_crashes=1)) == Poison(1)
    assert store.claim(ask(owner="w2", max_crashes=1)) == Poison(1)


@pytest.mark.parametrize("ending", list(Ending))
def test_failures_retries_and_releases_never_make_poison(store, ending):
    for n in range(5):
        outcome = store.claim(ask(owner=f"w{n}", attempt=n, max_crashes=1))
        store.release(outcome.claim, ending)

    assert store.get(KEY).crashes == 0
    assert isinstance(store.claim(ask(owner="w", attempt=5, max_crashes=1)), Claimed)


def test_refused_deliveries_never_make_poison(store):
    claim = take(store, owner="w1", task_id="t1", max_crashes=1)

    for n in range(5):
        store.claim(ask(owner=f"x{n}", task_id="t1", max_crashes=1))

    assert store.complete(claim, RESULT) is True


def test_a_poisoned_key_is_kept_for_the_retention_of_who_was_told(store):
    crash_times(store, 1, retention_ms=LONG_MS)
    before = store.get(KEY).expires_ms

    store.claim(ask(owner="w", max_crashes=1, retention_ms=3 * LONG_MS))

    assert store.get(KEY).expires_ms > before + LONG_MS
    assert store.claim(ask(owner="w2", max_crashes=1)) == Poison(1)


# --- 8: the fence


def test_every_claim_of_a_key_has_a_higher_fence(store):
    fences = []
    for n in range(5):
        claim = take(store, owner=f"w{n}")
        fences.append(claim.fence)
        store.release(claim, Ending.FAILURE)

    assert fences == sorted(set(fences))


def test_the_fence_grows_although_the_record_was_forgotten(store):
    first = take(store, owner="w1")
    store.forget(KEY)

    assert take(store, owner="w2").fence > first.fence


def test_the_fence_grows_although_the_record_has_expired(store, clock):
    first = take(store, owner="w1", lease_ms=1, retention_ms=SHORT_MS)
    clock.pass_ms(SHORT_MS)
    assert store.get(KEY) is None

    assert take(store, owner="w2").fence > first.fence


def test_a_poisoned_key_is_kept_for_the_retention_of_the_task_that_asks(store):
    crash_times(store, 3)
    before = store.get(KEY)

    assert store.claim(ask(owner="w", retention_ms=3 * LONG_MS)) == Poison(3)

    after = store.get(KEY)
    assert after.retention_ms == 3 * LONG_MS
    assert after.expires_ms - before.expires_ms > LONG_MS
