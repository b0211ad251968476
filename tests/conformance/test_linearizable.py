"""Several clients at one key at once: some order of their calls explains every answer (issue 6)."""

from __future__ import annotations

import itertools
import os
import random
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from celery_idem.core.record import Claim, Claimed, ClaimRequest, Held, Record
from celery_idem.stores.base import Store
from celery_idem.stores.memory import MemoryStore
from tests.conformance.broken import broken_stores
from tests.conformance.history import (
    RETENTION_MS,
    Call,
    Event,
    Shape,
    record_history,
    timeline,
)
from tests.conformance.linear import explain
from tests.conformance.machine import LASTS, OVER

#: histories tried for each store in the plain suite, and in the slow one
HISTORIES = int(os.environ.get("IDEM_HISTORIES", "60"))
SLOW_HISTORIES = int(os.environ.get("IDEM_HISTORIES", "1500"))
#: longest that a client holds back before it talks to a server, in seconds
LONGEST_HESITATION_S = 0.002
#: histories in which a broken store must be refuted
BROKEN_HISTORIES = 20_000
SHAPES = [Shape(2, 3), Shape(3, 2), Shape(2, 5, 1), Shape(3, 4, 3)]


def hesitate() -> None:
    """Let others in between: half the time not, else for a moment that differs."""
    if random.random() < 0.5:
        time.sleep(random.uniform(0, LONGEST_HESITATION_S))


@pytest.fixture
def hesitating(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that need several statements for a call hesitate before each of them."""
    from celery_idem.django.connections import Connections
    from celery_idem.stores.tiered import DoneCache

    open_connection, ask = Connections._open, DoneCache._ask

    def opened(self: Connections) -> Any:
        connection = open_connection(self)
        connection.execute_wrappers.append(_after_hesitating)
        return connection

    def asked(self: DoneCache, *args: Any, **kwargs: Any) -> Any:
        hesitate()
        return ask(self, *args, **kwargs)

    monkeypatch.setattr(Connections, "_open", opened)
    monkeypatch.setattr(DoneCache, "_ask", asked)


def _after_hesitating(execute: Callable[..., Any], *args: Any) -> Any:
    hesitate()
    return execute(*args)


def unexplained(stores: Sequence[Store], histories: int, shapes: Sequence[Shape] = SHAPES) -> str:
    """The first history that no order explains, as text; empty when there is none."""
    for seed, shape in zip(range(histories), itertools.cycle(shapes)):
        events = record_history(stores, f"key-{uuid.uuid4().hex[:12]}", seed, shape)
        found = explain(events)
        if not found.whole:
            explained = "\n".join(f"  {event.call}" for event in found.order)
            return (
                f"no order of these calls explains all answers (seed {seed}, {shape}):\n"
                f"{timeline(events)}\nas far as any order explains:\n{explained}"
            )
    return ""


def check(another: Callable[[], Store], histories: int) -> None:
    """Every history has an order that explains it; else it is printed."""
    stores = [another() for _ in range(max(shape.clients for shape in SHAPES))]
    history = unexplained(stores, histories)
    if history:
        pytest.fail(history, pytrace=False)


@pytest.fixture
def another(case: Any, subject: Any) -> Callable[[], Store]:
    """Clients of one store; the memory store is one object, with the clock of this machine."""
    shared = MemoryStore()
    return (lambda: shared) if case.name == "memory" else subject.another


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("hesitating")
def test_some_order_of_concurrent_calls_explains_every_answer(another):
    check(another, HISTORIES)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("hesitating")
def test_some_order_explains_every_answer_of_many_histories(another):
    check(another, SLOW_HISTORIES)


# --- a store that is wrong is refuted, by a history that a reader can follow


class ReadsThenWrites(MemoryStore):
    """Right when it is alone: every call reads, thinks, and writes over what came in between."""

    def __init__(self) -> None:
        super().__init__()
        self._lock: Any = nullcontext()

    def _read(self, key: str, now_us: int) -> Record | None:
        record = super()._read(key, now_us)
        hesitate()
        return record


#: what no history has: a retention that ends, two leases in one call, two results of one owner
UNSEEN = {
    "RecordsNeverExpire",
    "OnlyTheFirstOfABatchIsRenewed",
    "CompletingTwiceOverwrites",
}
BROKEN = [ReadsThenWrites, *(store for store in broken_stores() if store.__name__ not in UNSEEN)]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda store: store.__name__)
def test_a_broken_store_is_refuted_by_a_history(broken):
    store = broken()

    history = unexplained([store] * 3, BROKEN_HISTORIES)

    print(history)  # noqa: T201 - seen with pytest -s
    assert "client 1" in history
    assert "├" in history


# --- the search itself, on histories written by hand


def held_by(owner: str, task_id: str = "t1") -> Call:
    return Call("claim", (ClaimRequest("k", owner, LASTS, RETENTION_MS, task_id=task_id),))


def granted(owner: str, fence: int, runs: int = 1) -> Claimed:
    return Claimed(Claim("k", owner, fence, LASTS, RETENTION_MS, "t1"), runs=runs)


def test_two_claims_at_once_of_which_one_is_granted_are_explained_in_either_order():
    first = Event(1, held_by("a"), granted("a", 5), began=0, ended=2)
    second = Event(2, held_by("b"), Held(LASTS, task_id="t1"), began=1, ended=3)

    assert explain([first, second]).order == (first, second)
    assert explain([second, first]).order == (first, second)


def test_two_claims_that_are_both_granted_have_no_order():
    first = Event(1, held_by("a"), granted("a", 5), began=0, ended=2)
    second = Event(2, held_by("b"), granted("b", 6), began=1, ended=3)

    found = explain([first, second])

    assert not found.whole
    assert len(found.order) == 1


def test_no_call_is_put_before_one_that_had_ended_when_it_began():
    held = Event(1, held_by("b"), Held(LASTS, task_id="t1"), began=0, ended=1)
    granted_later = Event(2, held_by("a"), granted("a", 5), began=2, ended=3)

    assert not explain([held, granted_later]).whole
    assert explain([replace(held, ended=4), granted_later]).whole


def test_a_short_lease_may_be_over_and_may_be_not():
    first = Event(1, Call("claim", (ClaimRequest("k", "a", OVER, RETENTION_MS),)), None, 0, 1)
    first = replace(first, answer=Claimed(Claim("k", "a", 5, OVER, RETENTION_MS)))
    held = Event(2, held_by("b"), Held(1), 2, 3)
    took_over = Event(2, held_by("b"), replace(granted("b", 6, 2), crashes=1, crashed=True), 4, 5)

    assert explain([first, held, took_over]).whole
    assert not explain([first, took_over, replace(held, began=6, ended=7)]).whole


def test_a_fence_that_does_not_grow_has_no_order():
    first = Event(1, Call("claim", (ClaimRequest("k", "a", OVER, RETENTION_MS),)), None, 0, 1)
    first = replace(first, answer=Claimed(Claim("k", "a", 5, OVER, RETENTION_MS)))
    second = Event(2, held_by("b"), replace(granted("b", 5, 2), crashes=1, crashed=True), 2, 3)

    assert not explain([first, second]).whole
