"""A state of the model: plain tuples, so that two equal states are one.

Time is relative. The clock stands still, and instead of moving it on, a lease is moved back: the
protocol does nothing with times but compare them with now. Fences are kept by their order alone;
the clock is above all of them, as a server's microseconds are. Counters that no rule reads (runs,
failures, releases) are left out.
"""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any, NamedTuple

from celery_idem.core.record import Record, State

KEY = "shop.pay:order:1"
NOW_MS = 1_000
LEASE_MS = 10
RETENTION_MS = 100

#: steps at which a child believes that it holds the key, and works under it
HOLDING = frozenset(("body", "complete"))

_GIVEN_BACK = (State.FREE.value, State.WAITING.value)

OPEN = 2  #: a lease or hold that lasts
OVER = 1  #: one that is over


class Message(NamedTuple):
    task: str
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.task}#{self.attempt}"


class Kept(NamedTuple):
    """What the store holds of the key."""

    state: str
    owner: str = ""
    fence: int = 0
    lease: int = 0
    task: str = ""
    attempt: int = 0
    crashes: int = 0
    result: bytes = b""
    steps: tuple[tuple[str, bytes], ...] = ()
    settled: tuple[str, ...] = ()
    published: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        lease = {OPEN: ", lease runs", OVER: ", lease is over"}.get(self.lease, "")
        who = f" by {self.owner}" if self.owner else ""
        crashes = f", {self.crashes} crashes" if self.crashes else ""
        return f"{self.state}{who}, fence {self.fence}{lease}{crashes}"


class Worker(NamedTuple):
    """A parent with its child, and the delivery that they work on."""

    at: str = "idle"  #: the step that comes next
    message: tuple[Any, ...] = ()
    owner: str = ""
    fence: int = 0  #: of the claim that its child believes to hold
    lapsed: bool = False  #: the lease of that claim ran out since it was granted or renewed
    late: bool = False  #: the work was done before this delivery was taken


class Ledger(NamedTuple):
    """What an observer outside of broker and store has seen."""

    completions: int = 0
    highest: int = 0  #: fence
    newest: tuple[tuple[str, int], ...] = ()  #: task → newest attempt whose body was let in
    handed: tuple[str, ...] = ()  #: tasks whose follow-ups and result were handed on
    letters: tuple[str, ...] = ()  #: tasks with a dead letter
    crashes: int = 0  #: processes that died, pauses longer than a lease, claims left to theirs
    broken: str = ""  #: the promise that an event has just broken


class World(NamedTuple):
    kept: tuple[Any, ...]  #: a :class:`Kept`, or nothing
    workers: tuple[Worker, ...]
    ready: tuple[Message, ...]  #: messages that may be delivered; the others are with workers
    ledger: Ledger
    faults: int  #: faults that may still happen


def record_of(kept: tuple[Any, ...]) -> Record | None:
    """The record as the store knows it."""
    if not kept:
        return None
    k = Kept(*kept)
    return Record(
        key=KEY,
        state=State(k.state),
        owner=k.owner,
        fence=k.fence,
        lease_until_ms={0: 0, OVER: NOW_MS, OPEN: NOW_MS + LEASE_MS}[k.lease],
        lease_ms=LEASE_MS,
        retention_ms=RETENTION_MS,
        task_id=k.task,
        attempt=k.attempt,
        crashes=k.crashes,
        result=k.result or None,
        steps=dict(k.steps),
        settled=frozenset(k.settled),
        published=dict(k.published),
    )


def kept_of(record: Record | None) -> tuple[Any, ...]:
    """The inverse, without what makes equal states differ."""
    if record is None:
        return ()
    lease = 0
    if record.lease_until_ms:
        lease = OPEN if record.lease_until_ms > NOW_MS else OVER
    return Kept(
        record.state.value,
        record.owner,
        record.fence,
        lease,
        record.task_id,
        record.attempt,
        record.crashes,
        record.result or b"",
        tuple(sorted(record.steps.items())),
        tuple(sorted(record.settled)),
        tuple(sorted(record.published.items())),
    )


def canonical(world: World) -> World:
    """One state for all that differ by names only: of workers, of owners, of fences."""
    ranked = _with_ranked_fences(world)
    return min(_with_renamed_owners(ranked, order) for order in _orders(ranked.workers))


def _orders(workers: tuple[Worker, ...]) -> list[tuple[Worker, ...]]:
    # Owners are the only part of a worker that renaming changes: sort by the rest, permute ties.
    bare = sorted(workers, key=lambda w: w._replace(owner=""))
    if all(a._replace(owner="") != b._replace(owner="") for a, b in pairwise(bare)):
        return [tuple(bare)]
    return list(permutations(bare))


def _with_ranked_fences(world: World) -> World:
    kept = world.kept
    fences = {w.fence for w in world.workers} | {world.ledger.highest, 0}
    if kept:
        fences.add(kept[2])
    ordered = sorted(fences)
    if ordered[-1] == len(ordered) - 1:
        return world
    rank = {fence: n for n, fence in enumerate(ordered)}
    return world._replace(
        kept=Kept(*kept)._replace(fence=rank[kept[2]]) if kept else (),
        workers=tuple(w._replace(fence=rank[w.fence]) for w in world.workers),
        ledger=world.ledger._replace(highest=rank[world.ledger.highest]),
    )


def _with_renamed_owners(world: World, workers: tuple[Worker, ...]) -> World:
    kept = world.kept
    if kept and kept[0] in _GIVEN_BACK and all(w.owner != kept[1] for w in workers):
        kept = Kept(*kept)._replace(owner="")  # nobody will say again that it gave the key back
    names: dict[str, str] = {"": ""}
    if kept and kept[1]:
        names[kept[1]] = "1"
    for worker in workers:
        names.setdefault(worker.owner, str(len(names)))
    return world._replace(
        kept=Kept(*kept)._replace(owner=names[kept[1]]) if kept else (),
        workers=tuple(w._replace(owner=names[w.owner]) for w in workers),
        ready=tuple(sorted(world.ready)),
    )
