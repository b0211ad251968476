"""What a delivery gets that asks for a key: the eight rules of ``core/protocol.py``, in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_idem.core.record import (
    Claimed,
    Done,
    Ending,
    Held,
    Reused,
    Revoked,
    State,
    Superseded,
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


def test_a_key_that_nobody_has_is_claimed(store):
    outcome = store.claim(ask(owner="w", task_id="t", attempt=2, fingerprint="f"))

    assert isinstance(outcome, Claimed)
    assert (outcome.crashes, outcome.runs, outcome.crashed) == (0, 1, False)
    assert dict(outcome.steps) == {}
    claim = outcome.claim
    assert (claim.key, claim.owner, claim.task_id, claim.attempt) == (KEY, "w", "t", 2)
    assert (claim.lease_ms, claim.retention_ms) == (LONG_MS, LONG_MS)
    assert claim.fence > 0


def test_a_claim_is_recorded_before_the_body_starts(store):
    claim = take(store, owner="w", task_id="t", attempt=2, fingerprint="f")

    record = store.get(KEY)
    assert (record.key, record.state, record.owner) == (KEY, State.RUNNING, "w")
    assert (record.fence, record.task_id, record.attempt) == (claim.fence, "t", 2)
    assert (record.fingerprint, record.lease_ms, record.retention_ms) == ("f", LONG_MS, LONG_MS)
    assert (record.runs, record.crashes, record.failures, record.releases) == (1, 0, 0, 0)
    assert record.created_ms <= record.lease_until_ms - LONG_MS
    assert record.expires_ms > record.created_ms > 0
    assert (record.done_ms, record.result, record.revoked) == (0, None, False)


def test_a_key_that_another_task_holds_is_held_for_the_rest_of_its_lease(store):
    take(store, owner="w1", task_id="t1")

    outcome = store.claim(ask(owner="w2", task_id="t2"))

    assert isinstance(outcome, Held)
    assert 0 < outcome.remaining_ms <= LONG_MS
    assert (outcome.waiting, outcome.task_id) == (False, "t1")


def test_a_second_delivery_of_the_same_task_is_held_too(store):
    take(store, owner="w1", task_id="t1")

    outcome = store.claim(ask(owner="w2", task_id="t1"))

    assert isinstance(outcome, Held)


def test_a_refused_claim_changes_nothing(store):
    take(store, owner="w1", task_id="t1", fingerprint="f")
    before = store.get(KEY)

    store.claim(ask(owner="w2", task_id="t2", fingerprint="f", lease_ms=5, retention_ms=5))

    assert replace(store.get(KEY), expires_ms=0) == replace(before, expires_ms=0)


def test_two_keys_know_nothing_of_each_other(store):
    first = take(store, "a", owner="w")
    second = take(store, "b", owner="w")
    store.complete(first, RESULT)

    assert store.get("a").state is State.DONE
    assert store.get("b").state is State.RUNNING
    assert store.complete(second, RESULT) is True


# --- 1: superseded


def test_a_copy_older_than_the_published_retry_is_superseded(store):
    claim = take(store, task_id="t1", attempt=0)
    store.release(claim, Ending.RETRY, LONG_MS)

    assert store.claim(ask(owner="w2", task_id="t1", attempt=0)) == Superseded(1)


def test_a_copy_older_than_the_running_attempt_is_superseded(store):
    take(store, task_id="t1", attempt=3)

    assert store.claim(ask(owner="w2", task_id="t1", attempt=2)) == Superseded(3)


def test_a_copy_stays_superseded_after_the_retry_has_failed_for_good(store):
    store.release(take(store, attempt=0), Ending.RETRY)
    store.release(take(store, owner="w2", attempt=1), Ending.FAILURE)

    assert store.claim(ask(owner="w3", attempt=0)) == Superseded(1)


def test_a_copy_stays_superseded_after_another_task_took_the_key(store):
    store.release(take(store, task_id="t1", attempt=0), Ending.RETRY)
    take(store, owner="w2", task_id="t1", attempt=1)
    store.crash(KEY, "w2")
    take(store, owner="w3", task_id="t2")

    assert store.claim(ask(owner="w4", task_id="t1", attempt=0)) == Superseded(1)


def test_a_copy_is_superseded_by_an_attempt_that_ran_although_nobody_noted_its_publication(store):
    """Its publisher was killed between the publication and the note."""
    take(store, owner="w1", attempt=0)
    store.crash(KEY, "w1")
    store.release(take(store, owner="w2", attempt=1), Ending.FAILURE)

    assert store.claim(ask(owner="w3", attempt=0)) == Superseded(1)
    assert dict(store.get(KEY).published) == {"t1": 1}


def test_superseded_is_looked_at_before_done(store):
    store.release(take(store, attempt=0), Ending.RETRY)
    store.complete(take(store, owner="w2", attempt=1), RESULT)

    assert store.claim(ask(owner="w3", attempt=0)) == Superseded(1)


def test_the_attempts_of_one_task_say_nothing_of_anothers(store):
    store.release(take(store, task_id="t1", attempt=4), Ending.RETRY)
    store.release(take(store, owner="w2", task_id="t1", attempt=5), Ending.FAILURE)

    assert isinstance(store.claim(ask(owner="w3", task_id="t2", attempt=0)), Claimed)


def test_the_published_attempt_itself_is_not_superseded(store):
    store.release(take(store, attempt=0), Ending.RETRY, LONG_MS)

    outcome = store.claim(ask(owner="w2", attempt=1))

    assert isinstance(outcome, Claimed)
    assert (outcome.runs, outcome.crashes) == (2, 0)


def test_without_a_task_id_no_attempt_supersedes_another(store):
    store.release(take(store, task_id="", attempt=0), Ending.RETRY)

    assert not isinstance(store.claim(ask(owner="w2", task_id="", attempt=0)), Superseded)


# --- 2: reused


@pytest.mark.parametrize("ending", ["running", "done"])
def test_the_same_key_with_other_arguments_is_reused(store, ending):
    claim = take(store, task_id="t1", fingerprint="f1")
    if ending == "done":
        store.complete(claim, RESULT)

    assert store.claim(ask(owner="w2", task_id="t2", fingerprint="f2")) == Reused("t1")


def test_a_key_that_waits_for_its_retry_is_reused_by_another_task_with_other_arguments(store):
    store.release(take(store, task_id="t1", fingerprint="f1"), Ending.RETRY, LONG_MS)

    assert store.claim(ask(owner="w2", task_id="t2", fingerprint="f2")) == Reused("t1")


def test_an_expired_claim_with_other_arguments_is_still_reused(store, clock):
    take(store, task_id="t1", fingerprint="f1", lease_ms=SHORT_MS)
    clock.pass_ms(SHORT_MS)

    assert store.claim(ask(owner="w2", task_id="t2", fingerprint="f2")) == Reused("t1")


@pytest.mark.parametrize("ending", [Ending.FAILURE, Ending.RELEASE])
def test_a_key_that_was_given_back_may_be_used_with_other_arguments(store, ending):
    store.release(take(store, task_id="t1", fingerprint="f1"), ending)

    assert isinstance(store.claim(ask(owner="w2", task_id="t2", fingerprint="f2")), Claimed)
    assert store.get(KEY).fingerprint == "f2"


def test_a_retry_may_change_its_own_arguments(store):
    store.release(take(store, attempt=0, fingerprint="f1"), Ending.RETRY, LONG_MS)

    assert isinstance(store.claim(ask(owner="w2", attempt=1, fingerprint="f2")), Claimed)


def test_a_retry_that_overtakes_its_holders_release_may_change_its_arguments_too(store):
    take(store, attempt=0, fingerprint="f1")

    assert isinstance(store.claim(ask(owner="w2", attempt=1, fingerprint="f2")), Claimed)


@pytest.mark.parametrize(("first", "second"), [("", "f2"), ("f1", "")])
def test_a_call_without_a_fingerprint_is_never_refused_as_reused(store, first, second):
    store.complete(take(store, task_id="t1", fingerprint=first), RESULT)

    assert isinstance(store.claim(ask(owner="w2", task_id="t2", fingerprint=second)), Done)


def test_reused_is_looked_at_before_held(store):
    take(store, task_id="t1", fingerprint="f1")

    assert isinstance(store.claim(ask(owner="w2", task_id="t2", fingerprint="f2")), Reused)


# --- 3: done


def test_done_work_is_answered_with_its_result(store):
    store.complete(take(store, task_id="t1"), RESULT)

    assert store.claim(ask(owner="w2", task_id="t2")) == Done(RESULT, False, False, "t1")


def test_a_redelivery_of_the_task_that_did_the_work_is_told_so(store):
    store.complete(take(store, task_id="t1"), RESULT)

    assert store.claim(ask(owner="w2", task_id="t1")) == Done(RESULT, False, True, "t1")


def test_without_task_ids_nobody_is_the_same_task(store):
    store.complete(take(store, task_id=""), RESULT)

    assert store.claim(ask(owner="w2", task_id="")) == Done(RESULT, False, False, "")


def test_done_is_looked_at_before_poison(store):
    crash_times(store, 2)
    store.complete(take(store, owner="w", max_crashes=3), RESULT)

    assert isinstance(store.claim(ask(owner="w2", max_crashes=1)), Done)


def test_done_is_looked_at_before_revocation(store):
    store.complete(take(store), RESULT)
    store.revoke(KEY, LONG_MS)

    assert isinstance(store.claim(ask(owner="w2")), Done)


def test_done_work_stays_done_however_often_it_is_delivered(store):
    store.complete(take(store), RESULT)

    outcomes = [store.claim(ask(owner=f"w{n}")) for n in range(10)]

    assert {type(outcome) for outcome in outcomes} == {Done}
    assert store.get(KEY).runs == 1


def test_the_owner_that_did_the_work_gets_done_too(store):
    store.complete(take(store, owner="w"), RESULT)

    assert isinstance(store.claim(ask(owner="w")), Done)


# --- 4: revoked


def test_a_revoked_key_is_not_run(store):
    store.revoke(KEY, LONG_MS)

    assert store.claim(ask()) == Revoked()
    assert store.get(KEY).runs == 0


def test_a_retry_of_a_revoked_key_is_not_run(store):
    store.release(take(store, attempt=0), Ending.RETRY, LONG_MS)
    store.revoke(KEY, LONG_MS)

    assert store.claim(ask(owner="w2", attempt=1)) == Revoked()


def test_revoked_is_looked_at_before_poison(store):
    crash_times(store, 3)
    store.revoke(KEY, LONG_MS)

    assert store.claim(ask(owner="w")) == Revoked()
