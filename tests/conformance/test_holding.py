"""What a holder does with its claim, and what happens to it when it is no longer the holder."""

from __future__ import annotations

import pytest

from celery_idem.core.record import Claimed, Done, Ending, Held, State
from tests.conformance.asking import (
    KEY,
    LONG_MS,
    OTHER_RESULT,
    RESULT,
    SHORT_MS,
    ask,
    lease_of,
    take,
)

#: between two times of one operation: whole milliseconds, and a server's own rounding
ROUNDING_MS = 5


def lose(store, clock, **given):
    """A claim whose lease ran out and whose key somebody else has; both claims."""
    old = take(store, owner="old", task_id="t1", lease_ms=SHORT_MS, **given)
    clock.pass_ms(SHORT_MS)
    return old, take(store, owner="new", task_id="t2")


# --- renew


def test_a_renewed_lease_lasts_from_now(store, clock):
    claim = take(store, owner="w", lease_ms=SHORT_MS)
    before = store.get(KEY).lease_until_ms
    clock.pass_ms(SHORT_MS // 2)

    assert store.renew([lease_of(claim)]) == [True]
    assert store.get(KEY).lease_until_ms > before


def test_a_renewed_claim_is_not_taken_over(store, clock):
    claim = take(store, owner="w", task_id="t1", lease_ms=SHORT_MS)
    longer = lease_of(claim).__class__(KEY, "w", LONG_MS, LONG_MS, "t1", 0)

    store.renew([longer])
    clock.pass_ms(SHORT_MS)

    assert isinstance(store.claim(ask(owner="w2", task_id="t2")), Held)
    assert store.get(KEY).lease_ms == LONG_MS


def test_a_lease_that_is_over_is_renewed_if_nobody_took_the_key(store, clock):
    claim = take(store, owner="w", lease_ms=SHORT_MS)
    clock.pass_ms(SHORT_MS)

    assert store.renew([lease_of(claim)]) == [True]
    assert store.complete(claim, RESULT) is True
    assert store.get(KEY).crashes == 0


def test_a_lease_that_somebody_else_has_is_not_renewed(store, clock):
    old, new = lose(store, clock)

    assert store.renew([lease_of(old)]) == [False]
    assert store.get(KEY).owner == new.owner


@pytest.mark.parametrize("ending", list(Ending))
def test_a_claim_that_was_given_back_is_not_renewed(store, ending):
    claim = take(store)
    store.release(claim, ending)

    assert store.renew([lease_of(claim)]) == [False]


def test_a_claim_that_is_done_is_not_renewed(store):
    claim = take(store)
    store.complete(claim, RESULT)

    assert store.renew([lease_of(claim)]) == [False]
    assert store.get(KEY).state is State.DONE


def test_a_batch_of_renewals_is_answered_lease_by_lease(store, clock):
    old, new = lose(store, clock)
    mine = take(store, "other", owner="w")
    done = take(store, "finished", owner="w2")
    store.complete(done, RESULT)
    leases = [lease_of(mine), lease_of(old), lease_of(new), lease_of(done)]

    assert store.renew(leases) == [True, False, True, False]


def test_a_batch_of_two_hundred_renewals_is_answered_in_order(store):
    claims = [take(store, f"k{n}", owner=f"w{n}") for n in range(200)]
    for n in range(0, 200, 3):
        store.crash(f"k{n}", f"w{n}")

    answers = store.renew([lease_of(claim) for claim in claims])

    assert answers == [n % 3 != 0 for n in range(200)]


def test_no_leases_are_renewed_without_asking(store):
    assert store.renew([]) == []


def test_a_record_that_is_gone_is_put_back_by_its_living_holder(store):
    claim = take(store, owner="w", task_id="t1", attempt=2)
    store.forget(KEY)

    assert store.renew([lease_of(claim)]) == [True]
    record = store.get(KEY)
    assert (record.state, record.owner, record.task_id, record.attempt) == (
        State.RUNNING,
        "w",
        "t1",
        2,
    )
    assert record.fence >= claim.fence
    assert isinstance(store.claim(ask(owner="w2", task_id="t2")), Held)
    assert store.complete(claim, RESULT) is True


def test_renewing_keeps_the_record_from_expiring(store, clock):
    claim = take(store, retention_ms=1)
    before = store.get(KEY).expires_ms
    clock.pass_ms(SHORT_MS)

    store.renew([lease_of(claim)])

    assert store.get(KEY).expires_ms >= before + SHORT_MS


# --- complete


def test_a_completed_claim_is_done_with_its_result(store):
    claim = take(store, owner="w")

    assert store.complete(claim, RESULT) is True
    record = store.get(KEY)
    assert (record.state, record.result, record.owner) == (State.DONE, RESULT, "w")
    assert record.done_ms >= record.created_ms > 0
    assert record.lease_until_ms == 0
    assert record.fence == claim.fence


def test_completing_twice_is_one_completion(store):
    claim = take(store)
    store.complete(claim, RESULT)

    assert store.complete(claim, OTHER_RESULT) is True
    assert store.get(KEY).result == RESULT


def test_a_holder_may_complete_after_its_lease_if_nobody_took_the_key(store, clock):
    claim = take(store, lease_ms=SHORT_MS)
    clock.pass_ms(SHORT_MS)

    assert store.complete(claim, RESULT) is True


def test_a_loser_can_not_complete(store, clock):
    old, new = lose(store, clock)

    assert store.complete(old, OTHER_RESULT) is False
    assert store.get(KEY).state is State.RUNNING
    assert store.complete(new, RESULT) is True


def test_a_loser_can_not_complete_what_the_new_holder_has_completed(store, clock):
    old, new = lose(store, clock)
    store.complete(new, RESULT)

    assert store.complete(old, OTHER_RESULT) is False
    assert store.get(KEY).result == RESULT


@pytest.mark.parametrize("ending", list(Ending))
def test_a_claim_that_was_given_back_can_not_be_completed(store, ending):
    claim = take(store)
    store.release(claim, ending, LONG_MS)

    assert store.complete(claim, RESULT) is False
    assert store.get(KEY).result is None


def test_a_claim_that_counts_as_crashed_can_not_be_completed(store):
    claim = take(store, owner="w")
    store.crash(KEY, "w")

    assert store.complete(claim, RESULT) is False


def test_completing_a_record_that_is_gone_writes_it_anew(store):
    claim = take(store, owner="w", task_id="t1", attempt=2)
    store.forget(KEY)

    assert store.complete(claim, RESULT) is True
    record = store.get(KEY)
    assert (record.state, record.result, record.fence) == (State.DONE, RESULT, claim.fence)
    assert store.claim(ask(owner="w2", task_id="t1", attempt=2)) == Done(RESULT, False, True, "t1")


def test_a_record_written_anew_does_not_know_the_arguments_any_more(store):
    claim = take(store, task_id="t1", fingerprint="f1")
    store.forget(KEY)
    store.complete(claim, RESULT)

    outcome = store.claim(ask(owner="w2", task_id="t2", fingerprint="f2"))

    assert outcome == Done(RESULT, False, False, "t1")


def test_a_done_record_is_kept_for_its_retention(store):
    claim = take(store, lease_ms=SHORT_MS, retention_ms=LONG_MS)
    store.complete(claim, RESULT)

    record = store.get(KEY)
    assert abs(record.expires_ms - record.done_ms - LONG_MS) <= ROUNDING_MS


def test_a_done_record_is_dropped_after_its_retention(store, clock):
    store.complete(take(store, retention_ms=SHORT_MS), RESULT)
    clock.pass_ms(SHORT_MS)

    assert store.get(KEY) is None
    assert store.claim(ask(owner="w3")).runs == 1


# --- release


def test_a_failure_gives_the_key_back_and_is_counted_as_failure(store):
    assert store.release(take(store), Ending.FAILURE) is True

    record = store.get(KEY)
    assert (record.state, record.lease_until_ms) == (State.FREE, 0)
    assert (record.failures, record.releases, record.crashes) == (1, 0, 0)
    assert isinstance(store.claim(ask(owner="w2", task_id="t2")), Claimed)


def test_a_release_on_purpose_is_counted_as_release(store):
    assert store.release(take(store), Ending.RELEASE) is True

    record = store.get(KEY)
    assert record.state is State.FREE
    assert (record.failures, record.releases, record.crashes) == (0, 1, 0)


def test_a_release_for_a_retry_notes_the_published_attempt(store):
    assert store.release(take(store, task_id="t1", attempt=4), Ending.RETRY, LONG_MS) is True

    record = store.get(KEY)
    assert (record.state, record.attempt) == (State.WAITING, 5)
    assert (record.failures, record.releases, record.crashes) == (1, 0, 0)
    assert dict(record.published) == {"t1": 5}
    assert record.lease_until_ms > record.created_ms


def test_the_attempts_of_several_tasks_are_noted_side_by_side(store, clock):
    store.release(take(store, task_id="t1", attempt=0), Ending.RETRY, 1)
    clock.pass_ms(1)
    store.release(take(store, owner="w2", task_id="t2", attempt=6), Ending.RETRY, LONG_MS)

    assert dict(store.get(KEY).published) == {"t1": 1, "t2": 7}


def test_a_release_keeps_the_steps(store):
    claim = take(store)
    store.put_step(claim, "order", b"1")
    store.release(claim, Ending.RETRY, LONG_MS)

    assert dict(store.claim(ask(owner="w2", attempt=1)).steps) == {"order": b"1"}


@pytest.mark.parametrize("ending", list(Ending))
def test_a_loser_can_not_give_back_what_it_lost(store, clock, ending):
    old, new = lose(store, clock)

    assert store.release(old, ending, LONG_MS) is False
    record = store.get(KEY)
    assert (record.state, record.owner) == (State.RUNNING, new.owner)
    assert (record.failures, record.releases, dict(record.published)) == (0, 0, {})


@pytest.mark.parametrize("ending", list(Ending))
def test_what_is_done_can_not_be_given_back(store, ending):
    claim = take(store)
    store.complete(claim, RESULT)

    assert store.release(claim, ending) is False
    assert store.get(KEY).state is State.DONE


def test_giving_back_a_record_that_is_gone_is_no_loss(store):
    claim = take(store)
    store.forget(KEY)

    assert store.release(claim, Ending.RETRY, LONG_MS) is True
    assert store.get(KEY) is None


@pytest.mark.parametrize("ending", list(Ending))
def test_giving_back_twice_is_giving_back_once(store, ending):
    """The reply to the first may have been lost; the holder must not think that it lost the key."""
    claim = take(store)
    store.release(claim, ending, LONG_MS)
    before = store.get(KEY)

    assert store.release(claim, ending, LONG_MS) is True
    after = store.get(KEY)
    assert (after.failures, after.releases) == (before.failures, before.releases)
    assert dict(after.published) == dict(before.published)


def test_giving_back_again_after_somebody_else_did_too_is_refused(store):
    claim = take(store, owner="w1")
    store.release(claim, Ending.FAILURE)
    store.release(take(store, owner="w2"), Ending.FAILURE)

    assert store.release(claim, Ending.FAILURE) is False


def test_a_crashed_claim_can_not_be_given_back(store):
    claim = take(store, owner="w")
    store.crash(KEY, "w")

    assert store.release(claim, Ending.FAILURE) is False


def test_a_key_that_waits_outlives_its_hold_by_its_retention(store):
    store.release(take(store, retention_ms=LONG_MS), Ending.RETRY, 2 * LONG_MS)

    record = store.get(KEY)
    assert abs(record.expires_ms - record.lease_until_ms - LONG_MS) <= ROUNDING_MS
    assert record.lease_until_ms >= record.created_ms + 2 * LONG_MS


@pytest.mark.parametrize("ending", [Ending.FAILURE, Ending.RELEASE])
def test_a_key_given_back_is_kept_for_its_retention(store, ending):
    claim = take(store, retention_ms=LONG_MS)
    store.release(claim, ending)

    assert store.get(KEY).expires_ms >= store.get(KEY).created_ms + LONG_MS
