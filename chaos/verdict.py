"""What the ledger proves: each promise, and every job that breaks it. Pure; see its tests.

The ledger's lines are those of ``chaos/app.py``: ``start``, ``effect``, ``end`` or ``raised`` of a
body, and ``completed`` when its record was written. Times are monotonic, so no wrong clock touches
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.faults import Happening
from chaos.schedule import SERVER, Kind

Line = Mapping[str, Any]

#: The order of a shipment's steps.
STEPS = ("label", "carrier")
AT_MOST_ONCE = frozenset({"label"})
#: Seconds after the end of a fault in which what it began may still come to light.
AFTERMATH_S = 20.0
#: Seconds before a failover from which on the replica may lack what the master had acknowledged.
UNREPLICATED_S = 2.0

PROMISES = (
    "Nothing is lost: every job is done, or set aside as a letter",
    "Done is done: no body starts after its key was recorded as done",
    "A recorded step is not run again",
    "A transactional step is exactly once: one row for every shipment that is done",
    "An at-most-once step happens at most once",
    "Every second effect has a fault between it and the first",
)
POPPED = "Popped by kombu's Redis transport and not yet recorded when its worker died (C15)"
UNREPLICATED = "Acknowledged by a master that had not replicated it when it was replaced (C64)"


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the broker took, and what became of it in the end."""

    keys: frozenset[str]
    done_in_store: frozenset[str] = frozenset()  #: recorded as done; the ledger's line may be lost
    letters: Mapping[str, str] = field(default_factory=dict)  #: key → why it was set aside
    packed: Mapping[str, int] = field(default_factory=dict)  #: key → committed rows of its step
    popped: frozenset[str] = frozenset()  #: gone from the broker at the death of a worker (C15)
    sent: Mapping[str, float] = field(default_factory=dict)  #: key → when the broker had taken it
    unreplicated: Sequence[tuple[float, float]] = ()  #: failovers: (began, ended)


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise, and the keys that break it."""

    text: str
    broken: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.broken


@dataclass(frozen=True, slots=True)
class Verdict:
    """All promises, and what else was counted."""

    promises: tuple[Promise, ...]
    counts: Mapping[str, int]
    known: tuple[Promise, ...] = ()  #: what the documents say can happen, and did

    @property
    def holds(self) -> bool:
        return all(promise.holds for promise in self.promises)


def judge(lines: Sequence[Line], accepted: Accepted, faults: Sequence[Happening]) -> Verdict:
    """Look at every key."""
    by_key: dict[str, list[Line]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: float(line["monotonic"])):
        by_key[str(line["key"])].append(line)
    done = {k for k, of in by_key.items() if any(line["what"] == "completed" for line in of)}
    done |= accepted.done_in_store
    missing = accepted.keys - done - accepted.letters.keys()
    popped = missing & accepted.popped
    again = {key for key, of in by_key.items() if started_after_done(of)}
    broken = (
        missing - popped,
        again,
        _where(by_key, step_again),
        packed_wrongly(accepted, done),
        _where(by_key, twice_at_most_once),
        _where(by_key, lambda of: unexplained(of, faults)),
    )
    failed_over = {k for k in set().union(*broken) if _in_failover(k, by_key[k], accepted)}
    promises = tuple(
        Promise(text, _sorted(keys - failed_over))
        for text, keys in zip(PROMISES, broken, strict=True)
    )
    known = (
        Promise(POPPED, _sorted(popped)),
        Promise(UNREPLICATED, _sorted(failed_over)),
    )
    return Verdict(promises, _counts(by_key, accepted, done), tuple(k for k in known if k.broken))


# -- one key's lines, in order of time


def started_after_done(lines: Sequence[Line]) -> bool:
    """Whether a body started under a claim that was granted after a run had been recorded.

    A holder that was paused has an older claim, and the lower fence: see :func:`slept`.
    """
    return any(int(start["fence"]) > int(done["fence"]) for start, done in _late_starts(lines))


def slept(lines: Sequence[Line]) -> bool:
    """Whether a paused holder woke up and began although its successor was done."""
    return any(int(start["fence"]) < int(done["fence"]) for start, done in _late_starts(lines))


def _late_starts(lines: Sequence[Line]) -> list[tuple[Line, Line]]:
    """Bodies that started after the key's first record, each with that record."""
    done = next((line for line in lines if line["what"] == "completed"), None)
    if done is None:
        return []
    return [
        (line, done)
        for line in lines
        if line["what"] == "start" and float(line["monotonic"]) > float(done["monotonic"])
    ]


def step_again(lines: Sequence[Line]) -> bool:
    """Whether a step ran under a later claim although an earlier one had gone on to the next.

    Only a recorded step lets its claim go on. The old holder that wakes up has the lower fence.
    """
    reached: dict[int, int] = {}  # fence → the furthest step that it came to
    for line in effects(lines):
        if line.get("name") not in STEPS:
            continue
        step, fence = STEPS.index(str(line["name"])), int(line["fence"])
        if any(other < fence and furthest > step for other, furthest in reached.items()):
            return True
        reached[fence] = max(step, reached.get(fence, step))
    return False


def packed_wrongly(accepted: Accepted, done: set[str]) -> set[str]:
    """Shipments with two rows, and those that are done and have none."""
    ships = {key for key in done if key.startswith("ship:")}
    twice = {key for key, rows in accepted.packed.items() if rows > 1}
    return twice | (ships - accepted.packed.keys())


def twice_at_most_once(lines: Sequence[Line]) -> bool:
    """Whether a step marked ``at_most_once`` had two effects."""
    return any(
        sum(line.get("name") == name for line in effects(lines)) > 1 for name in AT_MOST_ONCE
    )


def unexplained(lines: Sequence[Line], faults: Sequence[Happening]) -> bool:
    """Whether an effect was repeated without a fault of its worker, or of a server, in between."""
    seen: dict[str, Line] = {}
    for line in effects(lines):
        name = str(line.get("name"))
        if name in seen and not _fault_between(seen[name], line, faults):
            return True
        seen[name] = line
    return False


def effects(lines: Iterable[Line]) -> list[Line]:
    """What was done to the world."""
    return [line for line in lines if line["what"] == "effect"]


def _fault_between(first: Line, second: Line, faults: Sequence[Happening]) -> bool:
    begin, end = float(first["monotonic"]), float(second["monotonic"])
    return any(
        fault.began - 1 < end
        and fault.ended + AFTERMATH_S > begin
        and (fault.fault.target == SERVER or first["worker"] == f"worker {fault.fault.target}")
        and fault.fault.kind is not Kind.CLOCK
        for fault in faults
    )


def _in_failover(key: str, lines: Sequence[Line], accepted: Accepted) -> bool:
    """Whether the job was accepted, or anything of it recorded, around a failover."""
    times = [float(line["monotonic"]) for line in lines]
    times += [accepted.sent[key]] if key in accepted.sent else []
    return any(
        began - UNREPLICATED_S < at < ended
        for began, ended in accepted.unreplicated
        for at in times
    )


def _where(by_key: Mapping[str, list[Line]], wrong: Callable[[list[Line]], bool]) -> set[str]:
    return {key for key, of in by_key.items() if wrong(of)}


def _sorted(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(keys))


def _counts(
    by_key: Mapping[str, list[Line]], accepted: Accepted, done: set[str]
) -> Mapping[str, int]:
    """Figures for the report, in its order."""
    named: list[int] = []
    for lines in by_key.values():
        times: dict[str, int] = defaultdict(int)
        for line in effects(lines):
            times[str(line.get("name"))] += 1
        named += times.values()

    def heard(what: str) -> int:
        return sum(line["what"] == what for lines in by_key.values() for line in lines)

    return {
        "jobs accepted": len(accepted.keys),
        "jobs done": len(accepted.keys & done),
        "set aside as letters": len(accepted.letters.keys() - done),
        "effects": sum(named),
        "different effects": len(named),
        "effects that were repeated": sum(times > 1 for times in named),
        "bodies started": heard("start"),
        "duplicates that got the recorded result": heard("duplicate"),
        "crashes counted": heard("crashed"),
        "holders told that they lost their lease": heard("lease lost"),
        "paused holders that began after their successor ended": sum(map(slept, by_key.values())),
    }
