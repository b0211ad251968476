"""The article's job (S-S2), with its records in the database, fails and dies in every place.

One worker, and an order for each place: its plan is under its own number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_idem import StepUncertain
from celery_idem.binding import store_of
from tests.django.databases import ALL
from tests.django.shop.models import Effect
from tests.support.effects import Effects

DEADLINE_S = 120
APP = "tests.django.jobs:app"
STEPS = ("order", "email", "stock")
MOMENTS = ("before", "inside", "after")

pytestmark = [
    pytest.mark.parametrize("database", ALL, indirect=True),
    pytest.mark.parametrize("store", ["django", "tiered"]),
]


def places() -> Iterator[tuple[str, str, str]]:
    """(what happens, when, in which step)"""
    for what in ("fail", "kill"):
        for when in MOMENTS:
            for step in STEPS:
                yield what, when, step


def expected(when: str, step: str) -> tuple[int, int, int]:
    """Effects of the three steps. In the database the effect and its record are one transaction;
    outside, what happens between the two lets it happen once more, not oftener."""
    outside = (2 if when == "inside" and step == name else 1 for name in ("email", "stock"))
    return (1, *outside)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wherever_it_fails_or_is_killed_each_effect_is_there_once(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any, plan: Any, store: str
) -> None:
    """SIGKILL and failure before, inside and after each step: once, but for the plain step that
    was interrupted inside, which is at most two."""
    jobs = shop(redis_url, store=store)
    orders = {f"{what}-{when}-{step}": (what, when, step) for what, when, step in places()}
    for number, (what, when, step) in orders.items():
        plan(f"{when}:{step}:{number}", f"{what} 1")
    start_worker(APP, concurrency=2)

    sent = {number: jobs.order.delay(number) for number in orders}

    for number, result in sent.items():
        answer = [f"{step}:{number} done" for step in STEPS]
        assert result.get(timeout=DEADLINE_S) == answer
    for number, (what, when, step) in orders.items():
        halves = Effect.objects.filter(name=f"order:{number}").count()
        outside = [effects.count(f"{name}:{number}") for name in ("email", "stock")]
        assert (halves / 2, *outside) == expected(when, step), number
        record = store_of(jobs.app).get(f"shop.order:order:{number}")
        assert record is not None
        assert (record.crashes, record.failures) == ((0, 1) if what == "fail" else (1, 0)), number
        assert set(record.steps) == set(STEPS)


def test_an_at_most_once_step_never_happens_twice(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any, plan: Any, store: str
) -> None:
    """Killed after its mark and before its record, it is a person's to decide."""
    jobs = shop(redis_url, store=store)
    for when in MOMENTS:
        plan(f"{when}:card:{when}", "kill 1")
    start_worker(APP, concurrency=2)

    sent = {when: jobs.charges.delay(when) for when in MOMENTS}

    for when in ("before", "inside"):
        with pytest.raises(StepUncertain, match="may or may not"):
            sent[when].get(timeout=DEADLINE_S)
    assert sent["after"].get(timeout=DEADLINE_S) == "card:after done"
    assert {when: effects.count(f"card:{when}") for when in MOMENTS} == {
        "before": 0, "inside": 1, "after": 1,
    }  # fmt: skip
