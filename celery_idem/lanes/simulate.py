"""A day of your lanes in seconds: the product's own scheduler on a virtual clock.

Workers, lines and orders are the ones that run in production; only the broker (one list per lane,
first in first out) and the jobs (random arrivals, random run times) are made up.

``python -m celery_idem.lanes.simulate --help``, or ``celery -A proj idem simulate``.
"""

from __future__ import annotations

import heapq
import importlib
import itertools
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from celery_idem.core.line import Line
from celery_idem.core.order import Lane, make_order

#: Jobs that one simulation runs at most.
MAX_JOBS: int = 40_000
#: Jobs per process that it runs at least, or nothing of a large fleet would be seen.
JOBS_PER_PROCESS: int = 5
#: Share of the jobs that only fill the queues before waits are counted.
WARM_UP = 0.2
#: What is compared: ``seconds`` is ``weighted`` charged in seconds, and ``reserve`` is
#: ``weighted`` with one process of every worker reserved for the first lane.
ORDERS: tuple[str, ...] = ("weighted", "seconds", "reserve", "strict", "deadline")
#: Rounds of the search for weights.
MOST_PROPOSALS = 12


@dataclass(frozen=True, slots=True)
class Load:
    """One lane and what is sent to it."""

    lane: Lane
    rate: float  #: jobs per second, at random moments
    run_time_s: float  #: of a job, on average
    spread: str = "exponential"  #: of run times; or "fixed"

    @property
    def busy(self) -> float:
        """Processes that it keeps busy on average."""
        return self.rate * self.run_time_s


@dataclass(frozen=True, slots=True)
class Fleet:
    """What serves the lanes."""

    workers: int
    processes: int

    @property
    def slots(self) -> int:
        return self.workers * self.processes


def scaled(loads: Sequence[Load], factor: float) -> list[Load]:
    """The same lanes with so many times the jobs, for a fleet so many times as large."""
    return [replace(load, rate=load.rate * factor) for load in loads]


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the jobs of one lane waited from their sending to their start, in seconds."""

    lane: str
    jobs: int
    p50_s: float
    p99_s: float
    longest_s: float
    deadline_s: float | None

    @property
    def kept(self) -> bool | None:
        """Whether 99 of 100 jobs started within the lane's promise; ``None`` without one."""
        return None if self.deadline_s is None else self.p99_s <= self.deadline_s


@dataclass(frozen=True, slots=True)
class Result:
    """One simulation."""

    order: str
    fleet: Fleet
    waits: tuple[Waits, ...]
    used: float  #: part of the processes' time in which they ran a job

    @property
    def kept(self) -> bool:
        """Whether every lane with a promise kept it."""
        return all(wait.kept is not False for wait in self.waits)


class _Worker:
    """One worker: its line, and in which lanes' waiting lists it stands."""

    def __init__(self, loads: Sequence[Load], order: str, processes: int, seed: int) -> None:
        lanes = [load.lane for load in loads]
        if order == "reserve":
            lanes[0] = replace(lanes[0], reserve=max(lanes[0].reserve, 1))
        kind = "weighted" if order in ("seconds", "reserve") else order
        charge = "seconds" if order == "seconds" else "messages"
        chosen = make_order(kind, lanes, charge=charge, rng=random.Random(seed))
        self.line: Line[float] = Line(lanes, chosen, slots=processes, fetched=True)


class _Run:
    """The state of one simulation."""

    def __init__(self, loads: Sequence[Load], fleet: Fleet, order: str, seed: int) -> None:
        self.loads = {load.lane.name: load for load in loads}
        self.rng = random.Random(seed)
        self.queues: dict[str, deque[float]] = {name: deque() for name in self.loads}
        self.waits: dict[str, list[float]] = {name: [] for name in self.loads}
        self.idle: dict[str, dict[int, None]] = {name: {} for name in self.loads}
        self.workers = [
            _Worker(loads, order, fleet.processes, seed + number) for number in range(fleet.workers)
        ]
        self.events: list[tuple[float, int, str, int, float]] = []
        self.serial = itertools.count()
        self.busy_s = 0.0
        self.count_from_s = math.inf
        for number in range(fleet.workers):
            self._offer(number)

    def push(self, at_s: float, lane: str, worker: int, run_time_s: float) -> None:
        """A job of the lane arrives (worker -1), or ends on this worker."""
        heapq.heappush(self.events, (at_s, next(self.serial), lane, worker, run_time_s))

    def arrive(self, now_s: float, lane: str) -> None:
        self.queues[lane].append(now_s)
        for number in self.idle[lane]:
            self._fetch(now_s, number)
            return

    def end(self, now_s: float, lane: str, number: int, run_time_s: float) -> None:
        self.workers[number].line.finished(lane, run_time_s)
        self._fetch(now_s, number)

    def _fetch(self, now_s: float, number: int) -> None:
        line = self.workers[number].line
        while True:
            open_lanes = line.fetchable()
            empty: list[str] = []
            taken = None
            for lane in line.order.preference(now_s):
                if lane in open_lanes and self.queues[lane]:
                    taken = lane
                    break
                empty.append(lane)
            if taken is None:
                break
            empty += [lane for lane in self.queues if lane not in open_lanes]
            line.order.took(taken, set(empty) - {taken})
            sent_s = self.queues[taken].popleft()
            line.order.head(taken, sent_s)
            line.add(taken, sent_s)
            line.next(now_s)
            self._start(now_s, number, taken, sent_s)
        self._offer(number)

    def _start(self, now_s: float, number: int, lane: str, sent_s: float) -> None:
        if sent_s >= self.count_from_s:
            self.waits[lane].append(now_s - sent_s)
        load = self.loads[lane]
        run_time_s = load.run_time_s
        if load.spread == "exponential":
            run_time_s = self.rng.expovariate(1.0 / load.run_time_s)
        self.busy_s += run_time_s
        self.push(now_s + run_time_s, lane, number, run_time_s)

    def _offer(self, number: int) -> None:
        open_lanes = self.workers[number].line.fetchable()
        for lane, waiting in self.idle.items():
            waiting.pop(number, None)
            if lane in open_lanes:
                waiting[number] = None  # at the end: the server serves who has waited longest


def simulate(
    loads: Sequence[Load],
    fleet: Fleet,
    order: str = "weighted",
    *,
    seed: int = 1,
    jobs: int = MAX_JOBS,
) -> Result:
    """Run about ``jobs`` jobs and say how long each lane's waited. The same seed, the same result.

    Queues that grow for ever (more work than processes) are cut at the end: their waits are what
    was seen so far.
    """
    run = _Run(loads, fleet, order, seed)
    jobs = max(jobs, JOBS_PER_PROCESS * fleet.slots)
    duration_s = jobs / sum(load.rate for load in loads)
    run.count_from_s = duration_s * WARM_UP
    for load in loads:
        for at_s in _arrivals(run.rng, load.rate, duration_s):
            run.push(at_s, load.lane.name, -1, 0.0)
    while run.events:
        now_s, _, lane, worker, run_time_s = heapq.heappop(run.events)
        if now_s > duration_s:
            break
        if worker < 0:
            run.arrive(now_s, lane)
        else:
            run.end(now_s, lane, worker, run_time_s)
    for lane, queue in run.queues.items():  # what never started has waited until the end
        run.waits[lane] += [duration_s - at_s for at_s in queue if at_s >= run.count_from_s]
    waits = tuple(_waits(load.lane, run.waits[load.lane.name]) for load in loads)
    return Result(order, fleet, waits, min(1.0, run.busy_s / (duration_s * fleet.slots)))


def _arrivals(rng: random.Random, rate: float, duration_s: float) -> Iterator[float]:
    at_s = rng.expovariate(rate)
    while at_s < duration_s:
        yield at_s
        at_s += rng.expovariate(rate)


def _waits(lane: Lane, waited: list[float]) -> Waits:
    waited = sorted(waited)

    def part(share: float) -> float:
        return waited[min(len(waited) - 1, int(len(waited) * share))] if waited else 0.0

    return Waits(
        lane.name,
        len(waited),
        part(0.5),
        part(0.99),
        waited[-1] if waited else 0.0,
        lane.deadline_s,
    )


@dataclass(frozen=True, slots=True)
class Proposal:
    """Weights to set, and what they give."""

    weights: dict[str, float]
    result: Result
    reason: str


def propose(loads: Sequence[Load], fleet: Fleet, *, order: str = "weighted") -> Proposal:
    """Weights with which the lanes keep their promises, or the best found and why not.

    Starts from the weights given, and doubles that of the lane that misses its promise by most,
    until all are kept.
    """
    needed = sum(load.busy for load in loads)
    best: tuple[float, list[Load], Result] | None = None
    trial = list(loads)
    for _ in range(MOST_PROPOSALS):
        result = simulate(trial, fleet, order)
        misses = {wait.lane: _miss(wait) for wait in result.waits}
        worst = max(misses.values())
        if best is None or worst < best[0]:
            best = (worst, trial, result)
        if worst <= 1.0:
            break
        late = max(misses, key=lambda lane: misses[lane])
        trial = [_double(load) if load.lane.name == late else load for load in trial]
    assert best is not None
    worst, trial, result = best
    least = min(load.lane.weight for load in trial)
    weights = {load.lane.name: round(load.lane.weight / least, 2) for load in trial}
    return Proposal(weights, result, _reason(worst, needed, fleet, result))


def _reason(worst: float, needed: float, fleet: Fleet, result: Result) -> str:
    if worst <= 1.0:
        return "every lane with a promise keeps it"
    if needed > fleet.slots:
        return (
            f"no weights can: the work needs {needed:.1f} processes and there are {fleet.slots}; "
            "weights decide who is late, not whether"
        )
    late = [wait.lane for wait in result.waits if wait.kept is False]
    return (
        f"{', '.join(late)} still misses its promise: its wait is that for a running job to end; "
        "give it a reserve, or more processes"
    )


def _miss(wait: Waits) -> float:
    return wait.p99_s / wait.deadline_s if wait.deadline_s else 0.0


def _double(load: Load) -> Load:
    return replace(load, lane=replace(load.lane, weight=load.lane.weight * 2))


if __name__ == "__main__":
    # the command is in the room below; run as a program, this module is only its address
    import importlib

    importlib.import_module("celery_idem.cli.lanes").simulate()
