"""Effect and record in one transaction (S-V8): both or neither, whenever the worker dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.effects import Effects

DEADLINE_S = 90
DATABASES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]


def count(name: str) -> int:
    from tests.django.shop.models import Effect

    return Effect.objects.filter(name=name).count()


@pytest.mark.parametrize("database", DATABASES, indirect=True)
@pytest.mark.parametrize("place", ["before", "inside", "end", "after"])
@pytest.mark.parametrize("what", ["fail", "kill"])
def test_wherever_it_fails_or_dies_the_databases_effect_is_there_once(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any, plan: Any, place: str, what: str
) -> None:
    jobs = shop(redis_url, store=redis_url)
    plan(f"{place}:order:1", f"{what} 1")
    start_worker("tests.django.jobs:app", concurrency=1)

    result = jobs.order.delay("1").get(timeout=DEADLINE_S)

    assert result == ["order:1 done", "email:1 done", "stock:1 done"]
    assert count("order:1") == 2  # its two halves
    assert [effects.count(f"{name}:1") for name in ("email", "stock")] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES[1:2], indirect=True)
@pytest.mark.timeout(900)
def test_killed_at_two_hundred_random_instants_rows_and_records_agree(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any
) -> None:
    """On PostgreSQL; the record of the step is in the inbox."""
    from celery_idem.binding import store_of
    from celery_idem.django.models import InboxEntry

    jobs = shop(redis_url, store=redis_url)
    start_worker("tests.django.jobs:app", concurrency=4)
    store = store_of(jobs.app)

    crashes = jobs_done = 0
    while crashes < 200:
        numbers = [str(jobs_done + n) for n in range(20)]
        for result in [jobs.dies.delay(number, 10, 0.015) for number in numbers]:
            result.get(timeout=300)
        records = [store.get(f"shop.dies:dies:{number}") for number in numbers]
        crashes += sum(record.crashes for record in records if record)
        jobs_done += len(numbers)

    assert effects.lines()
    for n in range(jobs_done):
        entries = InboxEntry.objects.filter(key=f"shop.dies:dies:{n}").count()
        assert (count(f"dies:{n}"), entries) == (2, 1)


@pytest.mark.parametrize("database", DATABASES[1:2], indirect=True)
def test_a_hook_on_commit_fires_once(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any, plan: Callable[[str, str], None]
) -> None:
    jobs = shop(redis_url, store=redis_url)
    plan("after:effect", "kill 2")
    start_worker("tests.django.jobs:app", concurrency=1)

    assert jobs.hooked.delay("1").get(timeout=DEADLINE_S) == "1"

    assert count("hooked:1") == 1
    assert effects.count("hook:1") == 1
