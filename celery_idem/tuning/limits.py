"""Time limits, from the longest run that was seen; ``max_lease_s`` must not be shorter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from celery_idem.tuning.facts import (
    ENOUGH_RUNS,
    Facts,
    Proposal,
    TaskFacts,
    how_sure,
    rounded_up,
    spoken_s,
)

#: A limit is this many times the longest run seen.
LIMIT_FACTOR = 3
#: The shortest soft limit that is proposed, in seconds: it is there for what hangs.
LEAST_LIMIT_S = 30.0
#: A soft limit comes at least so long before the hard one, in seconds.
SOFT_BEFORE_HARD_S = 5.0
#: Runs that take this part of a limit come near it.
NEAR = 0.8


def limits(facts: Facts) -> Iterator[Proposal]:
    """For each task that is asked for, and the ``max_lease_s`` that its limit needs."""
    changes = []
    for task in facts.tasks:
        for proposal in time_limits(task, _renewed_s(task, facts)):
            yield proposal
            if proposal.setting == "time_limit" and proposal.changes and task.idempotent:
                changes.append((task, float(proposal.proposed)))
    yield from _longer_leases(facts, changes)


def time_limits(task: TaskFacts, renewed_s: float | None) -> Iterator[Proposal]:
    """Three times the longest run seen, at least :data:`LEAST_LIMIT_S`, as the soft limit, and the
    hard one after it; no longer than the lease is renewed (``max_lease_s``), unless runs come near
    that. A limit that is there and neither cuts runs nor is ten times too long stays."""
    times = task.times
    if times.runs < ENOUGH_RUNS:
        return
    soft_s = rounded_up(max(LEAST_LIMIT_S, LIMIT_FACTOR * times.longest_s))
    hard_s = rounded_up(soft_s + max(SOFT_BEFORE_HARD_S, 0.1 * soft_s))
    why = f"{LIMIT_FACTOR} × the longest of {times.runs:,} runs, {spoken_s(times.longest_s)}"
    sure = how_sure(times)
    now_s = task.time_limit_s
    cut = times.share_above(NEAR * now_s) if now_s is not None else 0.0
    if task.set_for_all & {"time_limit", "soft_time_limit"}:
        why = 'none: task_annotations["*"] sets one, which wins over what is set for one task'
        yield Proposal(task.name, "time_limit", now_s, None, why, sure)
        return
    if now_s is None and task.lost_at_limit:
        why = "none: killed at a limit it would be acked and gone (acks_on_timeout; IDEM023)"
        yield Proposal(task.name, "time_limit", None, None, why, sure)
        return
    if now_s is None:
        why += "; without a limit a body that hangs keeps its process, and its lease, for ever"
    elif cut:
        why += f"; {cut:.1%} of runs come near the limit of {now_s:g} s"
    if now_s is not None and not cut and now_s <= 10 * hard_s:
        soft_s, hard_s = task.soft_time_limit_s or 0.0, now_s
    elif renewed_s is not None and renewed_s < hard_s and not times.share_above(NEAR * renewed_s):
        soft_s, hard_s = _soft_before(renewed_s), renewed_s
        why += f"; not longer than max_lease_s, {renewed_s:g} s"
    yield Proposal(task.name, "time_limit", now_s, hard_s, why, sure)
    if soft_s:
        why = "raises inside the task, so that it can tidy up"
        yield Proposal(task.name, "soft_time_limit", task.soft_time_limit_s, soft_s, why, sure)


def _soft_before(hard_s: float) -> float:
    """Later than the runs that come near the hard one."""
    return hard_s - min((1 - NEAR) * hard_s, max(SOFT_BEFORE_HARD_S, 0.1 * hard_s))


def _renewed_s(task: TaskFacts, facts: Facts) -> float | None:
    if not task.idempotent:
        return None
    return facts.max_lease_s if task.max_lease_s is None else task.max_lease_s


def _longer_leases(facts: Facts, changes: Iterable[tuple[TaskFacts, float]]) -> Iterator[Proposal]:
    """Where runs need a limit that is longer than their lease is renewed for."""
    longest: dict[str, tuple[float, TaskFacts, float]] = {}
    for task, hard_s in changes:
        now_s = _renewed_s(task, facts)
        if now_s is None or now_s >= hard_s:
            continue
        place = "idem" if task.max_lease_s is None else task.place_of("max_lease_s")
        if place not in longest or longest[place][0] < hard_s:
            longest[place] = (hard_s, task, now_s)
    for place, (hard_s, task, now_s) in longest.items():
        why = f"a run of {task.name} may last {hard_s:g} s, and loses its key without its lease"
        yield Proposal(place, "max_lease_s", now_s, hard_s, why, how_sure(task.times))
