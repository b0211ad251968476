"""A forgotten record does not come back, whoever had read it before; its fences stay below."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_idem.core.record import Claimed, State
from celery_idem.django.store import DjangoStore
from tests.conformance.asking import KEY, LONG_MS, RESULT, ask, take
from tests.django.databases import ALL


@pytest.fixture
def stores(database: str) -> Iterator[tuple[DjangoStore, DjangoStore]]:
    """Two processes' stores."""
    both = DjangoStore(database), DjangoStore(database)
    yield both
    for store in both:
        store.close()


def just_before_it_writes(store: DjangoStore, act: Callable[[], object]) -> None:
    """The next time that the store has read and is about to write, this happens first."""
    store.get(KEY)  # connects
    [connection] = store._connections._idle

    def wrapper(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql.startswith(("UPDATE", "INSERT")):
            connection.execute_wrappers.remove(wrapper)
            act()
        return execute(sql, *rest)

    connection.execute_wrappers.append(wrapper)


def forget_and_begin_anew(store: DjangoStore) -> None:
    assert store.forget(KEY)
    take(store, owner="after", task_id="after")


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_who_read_a_record_before_it_was_forgotten_does_not_write_over_the_next(stores) -> None:
    slow, other = stores
    claim = take(slow, owner="before")
    just_before_it_writes(slow, lambda: forget_and_begin_anew(other))

    assert slow.complete(claim, RESULT) is False

    record = other.get(KEY)
    assert record is not None
    assert (record.owner, record.state, record.runs) == ("after", State.RUNNING, 1)


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_a_revocation_of_a_forgotten_record_does_not_bring_it_back(stores) -> None:
    slow, other = stores
    take(slow, owner="before", task_id="before")
    just_before_it_writes(slow, lambda: other.forget(KEY))

    slow.revoke(KEY, LONG_MS)

    record = other.get(KEY)
    assert record is not None
    assert (record.revoked, record.owner, record.runs) == (True, "", 0)


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_who_saw_nothing_and_claims_late_has_a_fence_above_those_forgotten_meanwhile(
    stores,
) -> None:
    slow, other = stores
    given: list[int] = []

    def claim_and_forget() -> None:
        given.append(take(other, owner="meanwhile").fence)
        other.forget(KEY)

    just_before_it_writes(slow, claim_and_forget)

    late = slow.claim(ask(owner="late"))

    assert isinstance(late, Claimed)
    assert late.claim.fence > given[0]
    assert late.runs == 1


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_steps_that_a_claim_brings_are_those_of_the_record_that_it_claimed(stores) -> None:
    slow, other = stores
    claim = take(other, owner="before")
    other.put_step(claim, "old", b"value")
    other.crash(KEY, "before")
    just_before_it_writes(slow, lambda: other.forget(KEY))

    again = slow.claim(ask(owner="late"))

    assert isinstance(again, Claimed)
    assert (again.runs, dict(again.steps)) == (1, {})


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_what_is_left_of_a_forgotten_record_is_its_fence_and_is_pruned(
    stores, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_idem.django import store as module
    from celery_idem.django.models import KeyRecord, KeyStep

    store, _ = stores
    claim = take(store, owner="before", fingerprint="f", task_id="t1")
    store.put_step(claim, "step", b"secret")
    store.complete(claim, b"secret")
    store.forget(KEY)

    assert store.get(KEY) is None
    assert list(store.scan()) == []
    assert KeyStep.objects.using(database).count() == 0
    row = KeyRecord.objects.using(database).get()
    assert (row.fence, row.result, row.fingerprint, row.task_id) == (claim.fence, None, "", "")
    assert store.prune() == 0
    monkeypatch.setattr(module, "PRUNE_AFTER_MS", -1)
    assert store.prune() == 1
    assert KeyRecord.objects.using(database).count() == 0
