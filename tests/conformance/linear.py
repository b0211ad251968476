"""Is there an order of the calls that explains every answer? A search, after Wing and Gong.

A history of concurrent calls is *linearizable* (Herlihy and Wing, 1990) when its calls can be put
in one order, in which no call comes before one that had ended when it began, and in which the
model, called so one after the other, gives every answer that was seen. The search is Wing and
Gong's ("Testing and Verifying Concurrent Objects", 1993); as in Lowe's ("Testing for
Linearizability", 2017) nothing is searched twice that has the same calls explained and the model in
the same state.

The model is the memory store itself, one call at a time. Its clock stands still. That a short lease
or a short hold runs out is a step that nobody calls: it may come before any call. Fences are the
store's own: the model takes over each one that was given, and wants it above those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from celery_idem.core.record import Claimed, Record
from celery_idem.stores.memory import MemoryStore
from tests.conformance.history import Call, Event, perform, seen
from tests.conformance.machine import OVER

NOW_MS = 1_000
#: the fence of a record that a living holder put back: not known from any answer
_UNKNOWN = 0


@dataclass(frozen=True)
class State:
    """What the model holds of the key, and the highest fence that was given for it."""

    record: Record | None = None
    highest: int = 0

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for states that can't be told apart."""
        if self.record is None:
            return (None, self.highest)
        values = [getattr(self.record, field.name) for field in fields(self.record)]
        plain = [tuple(sorted(v.items())) if hasattr(v, "items") else v for v in values]
        return (*plain, self.highest)


@dataclass(frozen=True)
class Explained:
    """The search's end. ``order`` explains all, or as much as any order can."""

    order: tuple[Event, ...]
    whole: bool
    states: int


def explain(events: Sequence[Event]) -> Explained:
    """An order of the calls that the model agrees with, or the longest beginning of one."""
    best: tuple[Event, ...] = ()
    known: set[tuple[Any, ...]] = set()
    todo: list[tuple[tuple[Event, ...], frozenset[int], State]] = [((), frozenset(), State())]
    while todo:
        order, taken, state = todo.pop()
        best = max(best, order, key=len)
        if len(order) == len(events):
            return Explained(order, True, len(known))
        for event in _may_be_next(events, taken):
            for after in _agreeing(state, event):
                reached = (taken | {event.began}, after.identity)
                if reached not in known:
                    known.add(reached)
                    todo.append(((*order, event), taken | {event.began}, after))
    return Explained(best, False, len(known))


def _may_be_next(events: Sequence[Event], taken: frozenset[int]) -> list[Event]:
    """Calls that no other call, still to come, had ended before."""
    left = [event for event in events if event.began not in taken]
    first_end = min(event.ended for event in left)
    return [event for event in left if event.began < first_end]


def _agreeing(state: State, event: Event) -> list[State]:
    """The states after the call, for those pasts in which the model gives its answer."""
    found = []
    for before in _perhaps_later(state):
        after = _called(before, event)
        if after is not None:
            found.append(after)
    return found


def _perhaps_later(state: State) -> list[State]:
    """The state, and the one in which what is short has run out meanwhile."""
    record = state.record
    if record is None or record.lease_until_ms != NOW_MS + OVER:
        return [state]
    return [state, replace(state, record=replace(record, lease_until_ms=NOW_MS))]


def _called(state: State, event: Event) -> State | None:
    model = MemoryStore(lambda: NOW_MS * 1000)
    key = _key_of(event.call)
    if state.record is not None:
        model._records[key] = state.record
    said = perform(model, event.call)
    if seen(event.call, said) != seen(event.call, event.answer):
        return None
    after = model.get(key)
    if isinstance(event.answer, Record) and state.record is not None:
        return state if state.record.fence in (_UNKNOWN, event.answer.fence) else None
    if isinstance(event.answer, Claimed):
        return _with_fence(state, after, event)
    if after is not None and state.record is None:
        after = _put_back(after, event.call)
    return replace(state, record=after)


def _with_fence(state: State, after: Record | None, event: Event) -> State | None:
    """A claim that is granted has a new fence, above all; one that is repeated keeps its own."""
    fence = event.answer.claim.fence
    before = state.record
    assert after is not None
    if before is not None and before.runs == after.runs:
        if before.fence not in (_UNKNOWN, fence):
            return None
    elif fence <= state.highest:
        return None
    return State(replace(after, fence=fence), max(fence, state.highest))


def _put_back(record: Record, call: Call) -> Record:
    """Complete and put_step bring the claim's own fence, a renewal has none to bring."""
    if call.name == "renew":
        return replace(record, fence=_UNKNOWN)
    return record


def _key_of(call: Call) -> str:
    first = call.given[0]
    if isinstance(first, str):
        return first
    return str((first[0] if isinstance(first, list) else first).key)
