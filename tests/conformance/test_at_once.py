"""Several threads at one key: whatever the order, exactly one of them has it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from celery_idem.core.record import Claimed, Done, Held, State
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
from tests.conformance.registry import Subject

T = TypeVar("T")

THREADS = 8
ROUNDS = 10
DEADLINE_S = 60.0


def all_at_once(subject: Subject, work: Callable[..., T], threads: int = THREADS) -> list[T]:
    """What ``work(store, n)`` gives in each thread, all started together, a store for each."""
    start = threading.Barrier(threads)
    found: dict[int, T | BaseException] = {}

    def run(n: int) -> None:
        try:
            store = subject.another()
            start.wait(DEADLINE_S)
            found[n] = work(store, n)
            if store is not subject.store:
                store.close()  # or ten rounds would use up the connections of a database server
        except BaseException as error:
            found[n] = error

    crew = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(threads)]
    for each in crew:
        each.start()
    for each in crew:
        each.join(DEADLINE_S)
    assert len(found) == threads, "a thread did not end"
    for answer in found.values():
        if isinstance(answer, BaseException):
            raise answer
    return [found[n] for n in range(threads)]


def test_of_many_that_ask_at_once_one_is_granted(subject):
    for turn in range(ROUNDS):
        outcomes = all_at_once(
            subject,
            lambda store, n, turn=turn: store.claim(ask(f"k{turn}", f"w{n}", task_id=f"t{n}")),
        )

        granted = [outcome for outcome in outcomes if isinstance(outcome, Claimed)]
        assert len(granted) == 1
        assert all(isinstance(o, Held) for o in outcomes if o is not granted[0])
        assert subject.store.get(f"k{turn}").owner == granted[0].claim.owner


def test_of_many_that_take_over_one_does_and_the_crash_is_counted_once(subject):
    take(subject.store, owner="dead", task_id="t", lease_ms=SHORT_MS)
    subject.clock.pass_ms(SHORT_MS)

    outcomes = all_at_once(subject, lambda store, n: store.claim(ask(owner=f"w{n}", task_id="t")))

    granted = [outcome for outcome in outcomes if isinstance(outcome, Claimed)]
    assert [(g.crashes, g.crashed) for g in granted] == [(1, True)]
    assert subject.store.get(KEY).crashes == 1


def test_a_crash_that_many_report_is_counted_once(subject):
    take(subject.store, owner="dead")

    answers = all_at_once(subject, lambda store, n: store.crash(KEY, "dead"))

    assert sorted(answers, key=str) == [1] + [None] * (THREADS - 1)


def test_of_completion_and_take_over_one_wins(subject):
    for turn in range(ROUNDS):
        key = f"k{turn}"
        old = take(subject.store, key, owner="old", task_id="t1", lease_ms=1)
        subject.clock.pass_ms(1)

        def race(store, n, key=key, old=old):
            if n == 0:
                return store.complete(old, RESULT)
            return store.claim(ask(key, owner="new", task_id="t2"))

        completed, outcome = all_at_once(subject, race, threads=2)

        assert isinstance(outcome, Done) if completed else isinstance(outcome, Claimed)
        state = subject.store.get(key).state
        assert state is (State.DONE if completed else State.RUNNING)


def test_of_renewal_and_take_over_one_wins(subject):
    for turn in range(ROUNDS):
        key = f"k{turn}"
        old = take(subject.store, key, owner="old", task_id="t1", lease_ms=1)
        subject.clock.pass_ms(1)
        longer = lease_of(old).__class__(key, "old", LONG_MS, LONG_MS, "t1", 0)

        def race(store, n, key=key, longer=longer):
            if n == 0:
                return store.renew([longer])[0]
            return store.claim(ask(key, owner="new", task_id="t2"))

        renewed, outcome = all_at_once(subject, race, threads=2)

        assert isinstance(outcome, Held if renewed else Claimed)


def test_steps_of_many_threads_of_one_holder_are_all_kept(subject):
    claim = take(subject.store, owner="w")

    answers = all_at_once(subject, lambda store, n: store.put_step(claim, f"step-{n}", b"%d" % n))

    assert answers == [True] * THREADS
    assert dict(subject.store.get(KEY).steps) == {f"step-{n}": b"%d" % n for n in range(THREADS)}


def test_follow_ups_that_many_settle_are_all_noted(subject):
    subject.store.complete(take(subject.store), RESULT)

    all_at_once(subject, lambda store, n: store.settle(KEY, f"t{n}"))

    assert subject.store.get(KEY).settled == {f"t{n}" for n in range(THREADS)}


def test_runs_are_counted_although_many_ask_give_back_and_ask_again(subject):
    def work(store, n):
        granted = 0
        for turn in range(ROUNDS):
            outcome = store.claim(ask(owner=f"w{n}-{turn}", task_id=f"t{n}"))
            if isinstance(outcome, Claimed):
                granted += 1
                store.crash(KEY, outcome.claim.owner)
                store.free(KEY)
        return granted

    granted = all_at_once(subject, work)

    assert subject.store.get(KEY).runs == sum(granted) > 0


def test_one_store_serves_many_threads(subject):
    shared = subject.store

    def work(_, n):
        claim = take(shared, f"k{n}", owner=f"w{n}")
        shared.put_step(claim, "step", b"%d" % n)
        return shared.complete(claim, RESULT if n % 2 else OTHER_RESULT)

    assert all_at_once(subject, work) == [True] * THREADS
    for n in range(THREADS):
        record = shared.get(f"k{n}")
        assert record.result == (RESULT if n % 2 else OTHER_RESULT)
        assert dict(record.steps) == {"step": b"%d" % n}
