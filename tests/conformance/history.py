"""Concurrent histories: several clients of one store, and when each call began and ended."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_idem.core.record import Claim, Claimed, ClaimRequest, Ending, Lease, Record
from celery_idem.stores.base import Store
from tests.conformance.machine import LASTS, OVER, fields_of, visible

#: how long a thread may take for its whole program, in seconds
DEADLINE_S = 120.0
RETENTION_MS = 86_400_000  #: of every claim; no history comes near it


@dataclass(frozen=True)
class Call:
    """One call of one client: what it says, and to which claim it refers."""

    name: str
    given: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(_short(value) for value in self.given)})"


@dataclass(frozen=True)
class Event:
    """A call, its answer, and when: ``began`` and ``ended`` count the moments of a history."""

    client: int
    call: Call
    answer: Any
    began: int
    ended: int


def perform(store: Store, call: Call) -> Any:
    """Say it to a store."""
    return getattr(store, call.name)(*call.given)


def seen(call: Call, answer: Any) -> Any:
    """The answer without what no two stores agree on: exact times, the value of a fence."""
    if isinstance(answer, Record):
        return fields_of(answer)
    return visible(answer)


class Client:
    """Makes up its calls as it goes: it knows the claims that it was granted, and those of
    others that it is told of."""

    def __init__(self, number: int, key: str, seed: int, known: Sequence[Claim] = ()) -> None:
        self.number = number
        self.key = key
        self.claims = list(known)
        self.asked: list[ClaimRequest] = []
        self._random = random.Random(seed)
        self._owners = itertools.count()

    def next_call(self) -> Call:
        kinds = _ON_A_CLAIM if self.claims and self._random.random() < 0.55 else _ON_A_KEY
        weights = [weight for _, weight in kinds]
        make = self._random.choices([make for make, _ in kinds], weights)[0]
        return make(self)

    def heard(self, answer: Any) -> None:
        if isinstance(answer, Claimed):
            self.claims.append(answer.claim)

    # --- the calls

    def claim(self) -> Call:
        request = ClaimRequest(
            self.key,
            f"c{self.number}.{next(self._owners)} {self.key}",  # owner tokens are never used again
            self._any(LASTS, LASTS, OVER),
            RETENTION_MS,
            self._any("", "f1", "f1", "f2"),
            self._any("t1", "t1", "t2", ""),
            self._any(0, 0, 1, 2),
            self._any(1, 2, 3),
        )
        self.asked.append(request)
        return Call("claim", (request,))

    def claim_again(self) -> Call:
        """The reply was lost: the same is said once more."""
        return Call("claim", (self._any(*self.asked),)) if self.asked else self.claim()

    def complete(self) -> Call:
        claim = self._any(*self.claims)
        return Call("complete", (claim, claim.owner[:4].encode()))  # one owner has one result

    def release(self) -> Call:
        claim = self._any(*self.claims)
        return Call("release", (claim, self._any(*Ending), self._any(LASTS, OVER)))

    def renew(self) -> Call:
        c = self._any(*self.claims)
        lease = Lease(c.key, c.owner, LASTS, RETENTION_MS, c.task_id, c.attempt)
        return Call("renew", ([lease],))

    def crash(self) -> Call:
        claim = self._any(*self.claims)
        return Call("crash", (claim.key, claim.owner))

    def put_step(self) -> Call:
        claim = self._any(*self.claims)
        return Call("put_step", (claim, self._any("email", "stock"), self._any(b"1", b"2")))

    def settle(self) -> Call:
        return Call("settle", (self.key, self._any("t1", "t2")))

    def free(self) -> Call:
        return Call("free", (self.key,))

    def forget(self) -> Call:
        return Call("forget", (self.key,))

    def revoke(self) -> Call:
        return Call("revoke", (self.key, RETENTION_MS))

    def _any(self, *choices: Any) -> Any:
        return self._random.choice(choices)


_ON_A_CLAIM: list[tuple[Callable[[Client], Call], int]] = [
    (Client.complete, 4),
    (Client.release, 4),
    (Client.renew, 3),
    (Client.crash, 2),
    (Client.put_step, 3),
    (Client.claim_again, 2),
]
_ON_A_KEY: list[tuple[Callable[[Client], Call], int]] = [
    (Client.claim, 12),
    (Client.settle, 2),
    (Client.forget, 2),
    (Client.free, 2),
    (Client.revoke, 1),
]


@dataclass(frozen=True)
class Shape:
    """How large a history is."""

    clients: int = 2
    calls: int = 3  #: of each client
    before: int = 2  #: calls of one client alone, before the others begin


def record_history(stores: Sequence[Store], key: str, seed: int, shape: Shape) -> list[Event]:
    """What happened: first one client alone, then all at once, each with a store of its own, then
    the record as it is."""
    moments = itertools.count()
    first = Client(0, key, seed)
    events = _run(first, stores[0], shape.before, moments)
    events += _at_once(stores[: shape.clients], _clients(first, seed, shape), shape, moments)
    return [*events, _event(0, stores[0], Call("get", (key,)), moments)]


def _clients(first: Client, seed: int, shape: Shape) -> list[Client]:
    return [Client(n, first.key, seed * 31 + n, first.claims) for n in range(1, shape.clients + 1)]


def _run(client: Client, store: Store, calls: int, moments: Any) -> list[Event]:
    events = []
    for _ in range(calls):
        events.append(_event(client.number, store, client.next_call(), moments))
        client.heard(events[-1].answer)
    return events


def _event(number: int, store: Store, call: Call, moments: Any) -> Event:
    began = next(moments)
    answer = perform(store, call)
    return Event(number, call, answer, began, next(moments))


def _at_once(
    stores: Sequence[Store], clients: Sequence[Client], shape: Shape, moments: Any
) -> list[Event]:
    start = threading.Barrier(len(clients))
    found: dict[int, list[Event] | BaseException] = {}

    def run(client: Client, store: Store) -> None:
        try:
            store.get(client.key)  # connected
            start.wait(DEADLINE_S)
            found[client.number] = _run(client, store, shape.calls, moments)
        except BaseException as error:
            found[client.number] = error

    crew = [
        threading.Thread(target=run, args=pair, daemon=True)
        for pair in zip(clients, stores, strict=True)
    ]
    for each in crew:
        each.start()
    gives_up = time.monotonic() + DEADLINE_S
    for each in crew:
        each.join(max(0.0, gives_up - time.monotonic()))
    assert len(found) == len(clients), "a client did not end"
    events: list[Event] = []
    for answer in found.values():
        if isinstance(answer, BaseException):
            raise answer
        events += answer
    return sorted(events, key=lambda event: event.began)


# --- as text


def timeline(events: Sequence[Event]) -> str:
    """The history as a table: one line a call, in the order in which they began."""
    last = max(event.ended for event in events) + 1
    rows = []
    for event in sorted(events, key=lambda event: event.began):
        bar = " " * event.began + "├" + "─" * (event.ended - event.began - 1) + "┤"
        rows.append((bar.ljust(last), f"client {event.client}", str(event.call)))
    width = max(len(row[2]) for row in rows)
    return "\n".join(
        f"{bar}  {client}  {call.ljust(width)}  → {_short(event.answer)}"
        for (bar, client, call), event in zip(
            rows, sorted(events, key=lambda event: event.began), strict=True
        )
    )


def _short(value: Any) -> str:
    match value:
        case ClaimRequest():
            lease = "short" if value.lease_ms == OVER else "long"
            more = f", {value.fingerprint}" if value.fingerprint else ""
            return (
                f"{_owner(value)}, {value.task_id or 'no task'}#{value.attempt}, {lease} lease"
                f"{more}, poison at {value.max_crashes}"
            )
        case Claimed():
            facts = f"runs {value.runs}, crashes {value.crashes}, steps {dict(value.steps)}"
            return f"claimed, fence {value.claim.fence}, {facts}"
        case Claim() | Lease():
            return _owner(value)
        case Ending():
            return value.value
        case Record():
            shown = {k: v for k, v in fields_of(value).items() if v not in ("", None, {}, False)}
            return f"{shown}, fence {value.fence}"
        case [only]:
            return _short(only)
        case int() if value == LASTS:
            return "long"
        case int() if value == RETENTION_MS:
            return "a day"
    return str(value)


def _owner(value: Claim | ClaimRequest | Lease) -> str:
    return value.owner.partition(" ")[0]
