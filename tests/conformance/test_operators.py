"""What people do to keys: revoke, free, forget, look. And what a store says of itself."""

from __future__ import annotations

import pytest

from celery_idem.core.errors import StoreUnavailable
from celery_idem.core.record import Claimed, Ending, Held, Revoked, State
from celery_idem.stores.base import Store
from tests.conformance.asking import (
    KEY,
    LONG_MS,
    RESULT,
    SHORT_MS,
    ask,
    crash_times,
    lease_of,
    take,
)

ODD_KEYS = [
    "tests.pay:order:1",
    "with spaces and  two",
    "größe:你好:🙂",
    "{braces}",
    "}{",
    "a{b}c:{d}",
    "star*[a-z]?\\",
    "quote'\"`;--",
    "percent%41%",
    "nul\x00tab\tline",
    "UPPER:lower",
    "x" * 512,
]


# --- revoke


def test_a_running_body_is_not_stopped_by_a_revocation_but_never_run_again(store):
    claim = take(store, owner="w")
    store.revoke(KEY, LONG_MS)

    assert store.renew([lease_of(claim)]) == [True]
    store.release(claim, Ending.FAILURE)

    assert store.claim(ask(owner="w2")) == Revoked()


def test_a_running_body_may_still_complete_after_a_revocation(store):
    claim = take(store)
    store.revoke(KEY, LONG_MS)

    assert store.complete(claim, RESULT) is True


def test_a_revocation_is_kept_for_its_retention(store, clock):
    store.revoke(KEY, SHORT_MS)
    clock.pass_ms(SHORT_MS)

    assert isinstance(store.claim(ask()), Claimed)


def test_a_revocation_does_not_shorten_the_life_of_a_record(store, clock):
    store.complete(take(store), RESULT)
    store.revoke(KEY, SHORT_MS)
    clock.pass_ms(SHORT_MS)

    assert store.get(KEY).state is State.DONE


def test_a_revocation_lengthens_the_life_of_a_record(store, clock):
    store.release(take(store, lease_ms=1, retention_ms=SHORT_MS), Ending.FAILURE)
    store.revoke(KEY, LONG_MS)
    clock.pass_ms(SHORT_MS)

    assert store.claim(ask(owner="w2")) == Revoked()


def test_revoking_twice_is_revoking_once(store):
    store.revoke(KEY, LONG_MS)
    store.revoke(KEY, LONG_MS)

    assert store.claim(ask()) == Revoked()


# --- free


def test_freeing_takes_the_claim_from_its_holder(store):
    claim = take(store, owner="w")

    assert store.free(KEY) is True
    assert store.renew([lease_of(claim)]) == [False]
    assert store.complete(claim, RESULT) is False
    assert isinstance(store.claim(ask(owner="w2", task_id="t2")), Claimed)


def test_freeing_forgives_crashes_and_keeps_the_other_counters_and_the_steps(store):
    store.release(take(store, owner="w"), Ending.FAILURE)
    store.put_step(take(store, owner="w2"), "order", b"1")
    store.crash(KEY, "w2")
    crash_times(store, 2)

    assert store.free(KEY) is True

    record = store.get(KEY)
    assert (record.state, record.crashes, record.failures, record.runs) == (State.FREE, 0, 1, 4)
    assert dict(record.steps) == {"order": b"1"}
    assert isinstance(store.claim(ask(owner="w3", max_crashes=1)), Claimed)


def test_freeing_forgives_a_revocation(store):
    store.revoke(KEY, LONG_MS)

    assert store.free(KEY) is True
    assert isinstance(store.claim(ask()), Claimed)


def test_freeing_ends_the_wait_for_a_retry_and_keeps_its_attempt(store):
    store.release(take(store, task_id="t1"), Ending.RETRY, LONG_MS)

    assert store.free(KEY) is True
    assert dict(store.get(KEY).published) == {"t1": 1}
    assert isinstance(store.claim(ask(owner="w2", task_id="t2")), Claimed)


def test_a_done_key_is_not_freed(store):
    store.complete(take(store), RESULT)

    assert store.free(KEY) is False
    assert store.get(KEY).result == RESULT


def test_a_key_without_a_record_is_not_freed(store):
    assert store.free(KEY) is False
    assert store.get(KEY) is None


# --- forget


def test_a_forgotten_key_starts_anew(store):
    store.complete(take(store), RESULT)

    assert store.forget(KEY) is True
    assert store.get(KEY) is None
    assert store.claim(ask(owner="w2")).runs == 1


def test_a_key_without_a_record_is_not_forgotten(store):
    assert store.forget(KEY) is False


# --- get and scan


def test_a_key_without_a_record_has_none(store):
    assert store.get(KEY) is None


@pytest.mark.parametrize("key", ODD_KEYS)
def test_a_key_may_hold_any_characters(store, key):
    claim = take(store, key, owner="w1", task_id="t1")
    take(store, key + "x", owner="w2", task_id="t2")

    assert store.get(key).key == key
    assert store.complete(claim, RESULT) is True
    assert store.claim(ask(key, owner="w3")).result == RESULT
    assert store.get(key + "x").state is State.RUNNING
    assert [record.key for record in store.scan(key + "x")] == [key + "x"]


@pytest.mark.parametrize(("one", "other"), [("a", "A"), ("e", "é"), ("a", "a "), ("ß", "ss")])
def test_keys_that_differ_in_a_character_are_two_keys(store, one, other):
    take(store, one, owner="w1")

    assert isinstance(store.claim(ask(other, owner="w2")), Claimed)


def test_a_scan_finds_the_keys_that_contain_the_text(store):
    for key in ("pay:order:1", "pay:order:2", "mail:order:1"):
        take(store, key)

    assert {r.key for r in store.scan("pay:")} == {"pay:order:1", "pay:order:2"}
    assert {r.key for r in store.scan(":1")} == {"pay:order:1", "mail:order:1"}
    assert {r.key for r in store.scan()} == {"pay:order:1", "pay:order:2", "mail:order:1"}
    assert list(store.scan("nowhere")) == []


def test_a_scan_gives_whole_records(store):
    claim = take(store)
    store.put_step(claim, "email", b"sent")
    store.complete(claim, RESULT)

    [record] = store.scan("order")

    assert (record.key, record.state, record.result) == (KEY, State.DONE, RESULT)
    assert (record.fence, dict(record.steps)) == (claim.fence, {"email": b"sent"})


@pytest.mark.parametrize("text", ["*", "?", "[ab]", "%", "_", "\\"])
def test_a_scans_text_is_taken_literally(store, text):
    take(store, "plain")
    take(store, f"with{text}mark")

    assert [record.key for record in store.scan(text)] == [f"with{text}mark"]


def test_a_scan_stops_at_its_limit(store):
    for n in range(30):
        take(store, f"k{n}")

    assert len(list(store.scan(limit=7))) == 7
    assert len(list(store.scan("k", limit=100))) == 30


def test_a_scan_passes_over_expired_records(store, clock):
    take(store, "short", lease_ms=1, retention_ms=SHORT_MS)
    take(store, "long")
    clock.pass_ms(SHORT_MS)

    assert [record.key for record in store.scan()] == ["long"]


# --- the store itself


def test_it_is_a_store(store):
    assert isinstance(store, Store)


def test_a_second_store_over_the_same_records_sees_them(subject):
    claim = take(subject.store, task_id="t1")
    second = subject.another()

    assert isinstance(second.claim(ask(owner="w2", task_id="t2")), Held)
    assert second.complete(claim, RESULT) is True
    assert subject.store.get(KEY).result == RESULT


def test_a_closed_store_connects_anew(store):
    claim = take(store)
    store.close()
    store.close()

    assert store.complete(claim, RESULT) is True


def test_warnings_are_sentences(store):
    found = store.warnings()

    assert all(isinstance(text, str) and len(text.split()) > 3 for text in found)


OPERATIONS = {
    "claim": lambda store, claim: store.claim(ask()),
    "renew": lambda store, claim: store.renew([lease_of(claim)]),
    "complete": lambda store, claim: store.complete(claim, RESULT),
    "settle": lambda store, claim: store.settle(KEY, "t1"),
    "release": lambda store, claim: store.release(claim, Ending.RETRY, 5),
    "crash": lambda store, claim: store.crash(KEY, "w"),
    "put_step": lambda store, claim: store.put_step(claim, "email", b"sent"),
    "revoke": lambda store, claim: store.revoke(KEY, LONG_MS),
    "free": lambda store, claim: store.free(KEY),
    "forget": lambda store, claim: store.forget(KEY),
    "get": lambda store, claim: store.get(KEY),
    "scan": lambda store, claim: list(store.scan()),
    "warnings": lambda store, claim: store.warnings(),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_store_that_can_not_be_reached_says_so(case, store, operation):
    if case.unreachable is None:
        assert case.name == "memory", f"{case.name} has a server: give its case `unreachable`"
        return
    claim = take(store)
    unreachable = case.unreachable()

    with pytest.raises(StoreUnavailable):
        operation(unreachable, claim)
