"""Run times travel with a call that is made anyway, and add up over clients and days (S-V7)."""

from __future__ import annotations

import pytest

from celery_idem.core import histogram
from celery_idem.core.histogram import Histogram
from tests.conformance.asking import KEY, ask, take
from tests.conformance.test_at_once import all_at_once

PAY, MAIL = ("shop.pay", "critical", 40), ("shop.mail", "low", 73)


def test_a_new_store_knows_no_run_times(store):
    assert store.run_times(7) == {}


def test_counts_arrive_with_the_next_call_and_add_up_over_clients(subject):
    first, second = subject.another(), subject.another()
    first.carry({PAY: 3, MAIL: 1})
    second.carry({PAY: 2})

    take(first, "k1", owner="w1")
    take(second, "k2", owner="w2")

    found = subject.store.run_times(7)
    assert found == {
        ("shop.pay", "critical"): Histogram({40: 5}),
        ("shop.mail", "low"): Histogram({73: 1}),
    }


@pytest.mark.parametrize("call", ["claim", "renew", "complete", "release", "crash", "put_step"])
def test_every_call_of_a_claims_life_takes_them_along(store, call):
    from celery_idem.core.record import Ending
    from tests.conformance.asking import RESULT, lease_of

    claim = take(store, owner="w1")
    calls = {
        "claim": lambda: store.claim(ask(owner="w2", task_id="t2")),
        "renew": lambda: store.renew([lease_of(claim)]),
        "complete": lambda: store.complete(claim, RESULT),
        "release": lambda: store.release(claim, Ending.FAILURE),
        "crash": lambda: store.crash(KEY, "w1"),
        "put_step": lambda: store.put_step(claim, "step", b"1"),
    }
    store.carry({PAY: 1})

    calls[call]()

    assert store.run_times(1) == {("shop.pay", "critical"): Histogram({40: 1})}


def test_nothing_to_carry_is_no_call(store):
    store.carry({})
    take(store)

    assert store.run_times(7) == {}


def test_what_many_clients_carry_at_once_is_all_counted(subject):
    def work(store, n):
        for turn in range(5):
            store.carry({(f"task-{i}", "low", bucket): 1 for i in range(3) for bucket in range(4)})
            take(store, f"k{n}-{turn}", owner=f"w{n}-{turn}")

    all_at_once(subject, work, threads=4)

    found = subject.store.run_times(1)
    assert found == {(f"task-{i}", "low"): Histogram(dict.fromkeys(range(4), 20)) for i in range(3)}


def test_days_are_kept_apart_and_only_the_last_ones_are_told(store, monkeypatch):
    now = histogram.time.time()
    monkeypatch.setattr(histogram.today, "__defaults__", (lambda: now - 3 * 86400,))
    store.carry({PAY: 1})
    take(store, "k1")
    monkeypatch.setattr(histogram.today, "__defaults__", (lambda: now,))
    store.carry({PAY: 10})
    take(store, "k2")

    assert store.run_times(3) == {("shop.pay", "critical"): Histogram({40: 10})}
    assert store.run_times(4) == {("shop.pay", "critical"): Histogram({40: 11})}


def test_many_kinds_fit_into_one_call(store):
    store.carry({(f"task-{n}", "lane", n % 50): 1 for n in range(450)})
    take(store)

    assert len(store.run_times(1)) == 450


def test_carrying_never_raises_although_the_server_is_away(case):
    if case.unreachable is None:
        return  # there is no server to be away
    store = case.unreachable()

    store.carry({PAY: 1})
