"""Steps and follow-ups: what is recorded beside the claim and the result."""

from __future__ import annotations

import pytest

from celery_idem.core.record import Claimed, Done, Ending, Held, State
from tests.conformance.asking import KEY, LONG_MS, RESULT, SHORT_MS, ask, take

EVERY_BYTE = bytes(range(256))
ODD_NAMES = ["email", "email:order_complete:17", "a b", "größe", "{x}", "s:s:", "st", "ow", "*", ""]


def test_a_step_is_brought_back_by_the_next_claim(store):
    claim = take(store, owner="w1")

    assert store.put_step(claim, "email", b"sent") is True
    store.release(claim, Ending.FAILURE)

    assert dict(store.claim(ask(owner="w2")).steps) == {"email": b"sent"}


def test_a_step_changes_nothing_else_of_the_record(store):
    claim = take(store, fingerprint="f")
    before = store.get(KEY)

    store.put_step(claim, "email", b"sent")

    after = store.get(KEY)
    assert dict(after.steps) == {"email": b"sent"}
    for name in ("state", "owner", "fence", "lease_until_ms", "runs", "fingerprint", "task_id"):
        assert getattr(after, name) == getattr(before, name), name


def test_a_step_that_is_said_again_has_its_last_value(store):
    claim = take(store)
    store.put_step(claim, "email", b"started")
    store.put_step(claim, "email", b"done")

    assert dict(store.get(KEY).steps) == {"email": b"done"}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_step_may_have_any_name(store, name):
    claim = take(store, owner="w")
    store.put_step(claim, name, b"1")
    store.put_step(claim, "plain", b"2")
    store.crash(KEY, "w")

    outcome = store.claim(ask(owner="w2"))

    assert isinstance(outcome, Claimed)
    assert dict(outcome.steps) == {name: b"1", "plain": b"2"}


@pytest.mark.parametrize("value", [b"", b"\x00", b"\r\n", EVERY_BYTE, b"x" * 100_000])
def test_a_steps_value_comes_back_byte_for_byte(store, value):
    claim = take(store, owner="w")
    store.put_step(claim, "step", value)
    store.crash(KEY, "w")

    assert store.claim(ask(owner="w2")).steps["step"] == value


def test_a_loser_can_not_record_a_step(store, clock):
    old = take(store, owner="old", task_id="t1", lease_ms=SHORT_MS)
    clock.pass_ms(SHORT_MS)
    take(store, owner="new", task_id="t2")

    assert store.put_step(old, "email", b"sent") is False
    assert dict(store.get(KEY).steps) == {}


def test_a_step_is_recorded_after_the_lease_if_nobody_took_the_key(store, clock):
    claim = take(store, lease_ms=SHORT_MS)
    clock.pass_ms(SHORT_MS)

    assert store.put_step(claim, "email", b"sent") is True


@pytest.mark.parametrize("ending", [*Ending, "done"])
def test_no_step_is_recorded_after_the_claim_has_ended(store, ending):
    claim = take(store)
    if ending == "done":
        store.complete(claim, RESULT)
    else:
        store.release(claim, ending, LONG_MS)

    assert store.put_step(claim, "email", b"sent") is False
    assert dict(store.get(KEY).steps) == {}


def test_a_step_puts_a_record_back_that_is_gone(store):
    claim = take(store, owner="w", task_id="t1", attempt=2)
    store.forget(KEY)

    assert store.put_step(claim, "email", b"sent") is True
    record = store.get(KEY)
    assert (record.state, record.owner, record.fence) == (State.RUNNING, "w", claim.fence)
    assert (record.task_id, record.attempt, dict(record.steps)) == ("t1", 2, {"email": b"sent"})
    assert isinstance(store.claim(ask(owner="w2", task_id="t2")), Held)
    assert store.complete(claim, RESULT) is True


def test_many_steps_all_come_back(store):
    claim = take(store, owner="w")
    wanted = {f"step-{n}": b"%d" % n for n in range(100)}
    for name, value in wanted.items():
        store.put_step(claim, name, value)
    store.crash(KEY, "w")

    assert dict(store.claim(ask(owner="w2")).steps) == wanted


# --- results


@pytest.mark.parametrize("result", [b"", b"\x00", EVERY_BYTE, b"\r\n\r\n", b"x" * 200_000])
def test_a_result_comes_back_byte_for_byte(store, result):
    store.complete(take(store), result)

    assert store.claim(ask(owner="w2")).result == result


# --- settled


def test_follow_ups_are_settled_for_each_task_id(store):
    store.complete(take(store, task_id="t1"), RESULT)
    store.settle(KEY, "t1")

    assert store.claim(ask(owner="w2", task_id="t1")) == Done(RESULT, True, True, "t1")
    assert store.claim(ask(owner="w3", task_id="t2")) == Done(RESULT, False, False, "t1")

    store.settle(KEY, "t2")

    assert store.claim(ask(owner="w4", task_id="t2")) == Done(RESULT, True, False, "t1")
    assert store.get(KEY).settled == frozenset({"t1", "t2"})


def test_settling_twice_is_settling_once(store):
    store.complete(take(store, task_id="t1"), RESULT)
    store.settle(KEY, "t1")
    store.settle(KEY, "t1")

    assert store.get(KEY).settled == frozenset({"t1"})


def test_nothing_is_settled_while_the_work_is_not_done(store):
    take(store, task_id="t1")
    store.settle(KEY, "t1")

    assert store.get(KEY).settled == frozenset()


def test_a_key_without_a_record_is_not_settled(store):
    store.settle(KEY, "t1")

    assert store.get(KEY) is None
