"""What a proposal is made from, and what one is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from celery_idem.core.histogram import Histogram
from celery_idem.core.order import Lane
from celery_idem.core.retry_window import RetryPolicy

#: So many runs bound the 99th percentile with 95 % confidence, whatever the distribution.
ENOUGH_RUNS = 299
#: Fewer runs say hardly anything.
FEW_RUNS = 30


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task: how long it ran, and what is set for it. Seconds."""

    name: str
    times: Histogram
    idempotent: bool = True
    lease_s: float | None = None  #: its own, where it has one
    time_limit_s: float | None = None  #: hard
    soft_time_limit_s: float | None = None
    retention_s: float | None = None  #: its own, where it has one
    max_lease_s: float | None = None  #: its own, where it has one
    #: of an idempotent task: by which its body's own retries go, then its automatic ones
    policies: tuple[RetryPolicy, ...] = ()
    countdown_s: float | None = None  #: the longest that its body's ``self.retry`` names
    acks_late: bool = True
    returns_much: bool = False  #: what it returns can't be seen to be small
    lost_at_limit: bool = False  #: plain, and acked when it is killed at its limit
    #: what ``task_annotations["*"]`` sets; Celery lets that win over a task's own annotation
    set_for_all: frozenset[str] = frozenset()

    def place_of(self, setting: str) -> str:
        """Where in ``task_annotations`` a setting of its own goes."""
        return "*" if setting in self.set_for_all else self.name


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """A lane, or a queue that is none, and what was run from it."""

    name: str
    times: Histogram
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What there is to go by. Seconds.

    ``tasks`` are those that ran and are asked for: limits are proposed for them. What is set for
    the whole app must fit ``others``, too: never run in these days, or not asked for.
    """

    tasks: tuple[TaskFacts, ...]
    others: tuple[TaskFacts, ...] = ()
    lanes: tuple[LaneFacts, ...] = ()  #: those of ``idem["lanes"]``, by rank; then other queues
    lease_s: float = 30.0
    retention_s: float | None = None  #: the app's
    max_lease_s: float | None = None  #: the app's
    visibility_timeout_s: float | None = None  #: None: the broker has none
    most_visibility_s: float | None = None  #: the longest that the broker takes
    delay_s: float = 0.0  #: the longest that messages wait unacked until they are due
    consumer_timeout_s: float | None = None  #: RabbitMQ's default
    kept: bool = False  #: the visibility keeper looks after messages
    charge: str = "messages"
    prefetch: int = 4  #: ``worker_prefetch_multiplier``
    lanes_choose: bool = True  #: lanes are served message by message
    processes: int | None = None  #: ``worker_concurrency``, where it is set
    result_expires_s: float | None = None  #: None: never, or there is no result backend
    annotations_merge: bool = True  #: ``task_annotations`` is a dict, or nothing
    days: int = 7
    never_ran: tuple[str, ...] = ()

    @property
    def prefetches(self) -> bool:
        """Whether workers hold messages that no process is free for."""
        return not (self.configured_lanes and self.lanes_choose)

    @property
    def every(self) -> tuple[TaskFacts, ...]:
        """All tasks, asked for or not."""
        return self.tasks + self.others

    @property
    def idempotent(self) -> Histogram:
        """All runs of idempotent tasks."""
        return _together(task.times for task in self.every if task.idempotent)

    @property
    def all_runs(self) -> Histogram:
        """All runs."""
        return _together(task.times for task in self.every)

    @property
    def configured_lanes(self) -> tuple[LaneFacts, ...]:
        """Those that ``idem["lanes"]`` names."""
        return tuple(lane for lane in self.lanes if lane.lane is not None)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A setting, what it is now, what it should be, and why.

    ``place``: where it goes: ``idem``, ``broker_transport_options``, ``conf``, ``lanes.<name>``, or
    the name of a task (``*``: all tasks). ``proposed`` is ``now`` where it fits already, and None
    where nothing can be said, or not yet.
    """

    place: str
    setting: str
    now: Any
    proposed: Any
    reason: str
    sure: str

    @property
    def changes(self) -> bool:
        """Whether something is to be pasted."""
        return self.proposed is not None and self.proposed != self.now


@dataclass(frozen=True, slots=True)
class Advice:
    """All of it."""

    facts: Facts
    proposals: tuple[Proposal, ...]
    warnings: tuple[str, ...] = field(default_factory=tuple)


#: (place, setting) → the fact that it becomes; a task's settings have the task's name as place
_OF_APP = {
    ("idem", "retention_s"): "retention_s",
    ("idem", "max_lease_s"): "max_lease_s",
    ("conf", "worker_prefetch_multiplier"): "prefetch",
    ("broker_transport_options", "visibility_timeout"): "visibility_timeout_s",
}
_OF_TASK = {
    "time_limit": "time_limit_s",
    "soft_time_limit": "soft_time_limit_s",
    "retention_s": "retention_s",
    "max_lease_s": "max_lease_s",
}


def pasted(facts: Facts, proposals: Iterable[Proposal]) -> Facts:
    """The facts as they are when the proposals are in force: what the next ones must fit."""
    changes = {(p.place, p.setting): p.proposed for p in proposals if p.changes}
    of_app = {fact: changes[at] for at, fact in _OF_APP.items() if at in changes}
    return replace(
        facts,
        tasks=tuple(_pasted(task, changes) for task in facts.tasks),
        others=tuple(_pasted(task, changes) for task in facts.others),
        **of_app,
    )


def _pasted(task: TaskFacts, changes: dict[tuple[str, str], Any]) -> TaskFacts:
    own = {
        fact: changes[task.place_of(setting), setting]
        for setting, fact in _OF_TASK.items()
        if (task.place_of(setting), setting) in changes
    }
    return replace(task, **own)


def how_sure(times: Histogram) -> str:
    """What the size of the sample is worth, in words."""
    runs = times.runs
    if runs < FEW_RUNS:
        return f"a guess: {_runs(runs)}"
    bound_s = times.quantile_at_most(0.99)
    if bound_s is None:
        return f"fair: {_runs(runs)}; 99 % are bounded from {ENOUGH_RUNS} on"
    return f"good: {_runs(runs)}; 99 % within {spoken_s(bound_s)}, with 95 % confidence"


def spoken_s(seconds: float) -> str:
    """A run time as people say it.

    >>> spoken_s(0.0123), spoken_s(1.234), spoken_s(42.0), spoken_s(90.0), spoken_s(7300.0)
    ('12 ms', '1.2 s', '42 s', '1 min 30 s', '2 h 1 min')
    """
    if seconds < 0.0095:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s" if left else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def rounded_up(seconds: float) -> float:
    """The next number that a person would write into settings.

    >>> [rounded_up(s) for s in (0.2, 3.1, 11, 61, 700, 4000)]
    [1.0, 4.0, 15.0, 90.0, 720.0, 4200.0]
    """
    for most, step in ((10, 1), (60, 5), (600, 30), (3600, 60)):
        if seconds <= most:
            return float(step * -(-seconds // step))
    return float(600 * -(-seconds // 600))


def _runs(runs: int) -> str:
    return f"{runs:,} run" + ("" if runs == 1 else "s")


def _together(many: Any) -> Histogram:
    whole = Histogram()
    for one in many:
        whole = whole + one
    return whole
