"""One function for each setting: from what was measured to a value, with the reason.

Nothing here is a law. Each reason says the arithmetic, so that a reader can disagree with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from celery_idem.core.histogram import Histogram
from celery_idem.lease import RENEW_AT
from celery_idem.tuning.facts import (
    Advice,
    Facts,
    LaneFacts,
    Proposal,
    TaskFacts,
    how_sure,
    pasted,
    rounded_up,
    spoken_s,
)
from celery_idem.tuning.limits import LIMIT_FACTOR, limits
from celery_idem.tuning.retention import result_expires, retention

#: The shortest lease that is proposed, in seconds: two thirds of it, what a worker may be frozen
#: or cut off without being taken for dead, are still longer than most hiccups.
LEAST_LEASE_S = 5.0
#: The longest: renewals are one call for all claims of a worker, recovery takes the whole lease.
MOST_LEASE_S = 30.0
#: The shortest visibility timeout that is proposed, in seconds.
LEAST_VISIBILITY_S = 60.0
#: What a process holds in reserve should not take longer than this, in seconds.
RESERVED_WORK_S = 0.25
MOST_PREFETCH = 64
#: A lane without a deadline is not to wait longer than this for the jobs of lower lanes, in s.
PROMISE_S = 2.0
#: Lanes whose jobs differ by less than this in length are charged by count.
UNLIKE = 3.0


def advise(facts: Facts) -> Advice:
    """Everything that the measured run times say.

    Each proposal fits those before it: the visibility timeout counts the limits, the retention
    both. All of them are pasted together, and have to pass :mod:`celery_idem.doctor` so.
    """
    limited = list(limits(facts))
    then = pasted(facts, limited)
    fetched = list(prefetch(then))
    then = pasted(then, fetched)
    # until the last worker is started again, as much is reserved as now
    most = max(facts.prefetch, then.prefetch)
    visible = list(visibility_timeout(replace(then, prefetch=most)))
    then = pasted(then, visible)
    kept = list(retention(then))
    then = pasted(then, kept)
    kept += result_expires(facts, then)
    lanes = [*reserve(facts), *weights(facts)]
    proposals = (lease(facts), *visible, *limited, *kept, *fetched, *lanes)
    return Advice(facts, proposals, (*warnings(facts), *_beyond_the_app(facts, then)))


def lease(facts: Facts) -> Proposal:
    """Three times what 99 % of the runs take, so that they end before the first renewal; at least
    :data:`LEAST_LEASE_S`, at most :data:`MOST_LEASE_S`."""
    times = facts.idempotent
    if not times.runs:
        why = "no run of an idempotent task was recorded yet"
        return Proposal("idem", "lease_s", facts.lease_s, None, why, how_sure(times))
    p99_s = times.quantile(0.99)
    wanted_s = p99_s / RENEW_AT
    proposed_s = rounded_up(min(MOST_LEASE_S, max(LEAST_LEASE_S, wanted_s)))
    renew_s = proposed_s * RENEW_AT
    if wanted_s <= proposed_s:
        why = (
            f"99 % of runs end within {spoken_s(p99_s)}, before the first renewal at "
            f"{spoken_s(renew_s)}"
        )
    else:
        why = (
            f"99 % of runs end within {spoken_s(p99_s)}; longer ones are renewed every "
            f"{spoken_s(renew_s)}, all of a worker in one call"
        )
    why += (
        f"; {proposed_s:g} s after its last sign of life a dead worker's job starts again, and a "
        "duplicate that met a running job asks again"
    )
    return Proposal("idem", "lease_s", facts.lease_s, proposed_s, why, how_sure(times))


def visibility_timeout(facts: Facts) -> Iterator[Proposal]:
    """Long enough for a message that waits behind others in the prefetch, runs as long as it may,
    and is retried after the longest delay; twice that. Never lowered where a task's run time is
    not known."""
    now_s = facts.visibility_timeout_s
    if now_s is None:
        return
    times = facts.all_runs
    longest_s, pause_s = _longest_run_s(facts), _longest_pause_s(facts)
    held = 1 + (facts.prefetch if facts.prefetches else 0)
    need_s = held * longest_s + pause_s
    # the doctor counts the prefetch beside lanes, too (IDEM010)
    least_s = 0.0 if facts.kept else facts.prefetch * longest_s
    proposed_s = rounded_up(max(LEAST_VISIBILITY_S, 2 * need_s, least_s))
    if facts.most_visibility_s is not None:
        proposed_s = min(proposed_s, facts.most_visibility_s)
    why = (
        f"2 × ({held} × {spoken_s(longest_s)} for the longest run and what is reserved before it "
        f"+ {spoken_s(pause_s)} for the longest retry delay)"
    )
    if least_s > 2 * need_s:
        why += f"; at least {facts.prefetch} runs of the prefetch, which idem check counts"
    if facts.most_visibility_s == proposed_s:
        why += f"; the broker takes no more than {proposed_s:g} s"
    if facts.kept:
        why += "; only for workers without the visibility keeper, which has no such bound"
    place = "broker_transport_options"
    if not times.runs:
        yield Proposal(place, "visibility_timeout", now_s, None, "nothing ran yet", how_sure(times))
        return
    # longer than needed is no fault where the keeper brings a dead worker's messages back
    lasting = facts.kept or not _all_known(facts) or now_s <= 4 * proposed_s
    fits = now_s > need_s and now_s >= least_s and lasting
    yield Proposal(
        place, "visibility_timeout", now_s, now_s if fits else proposed_s, why, how_sure(times)
    )


def prefetch(facts: Facts) -> Iterator[Proposal]:
    """What a process reserves should be over in a quarter of a second, or it holds up what is
    urgent and what others could do."""
    times = facts.all_runs
    name = "worker_prefetch_multiplier"
    if not facts.prefetches:
        why = "no effect with lanes: a worker takes a message when it has a process for it"
        yield Proposal("conf", name, facts.prefetch, facts.prefetch, why, how_sure(times))
        return
    if not times.runs:
        return
    mean_s = max(times.mean_s, 0.0001)
    proposed = int(min(MOST_PREFETCH, max(1, RESERVED_WORK_S // mean_s)))
    why = (
        f"a run takes {spoken_s(mean_s)} on average: {proposed} reserved for each process are "
        f"{spoken_s(proposed * mean_s)} of work that nobody else can take"
    )
    if not facts.kept and proposed > (most := _most_prefetch(facts)):
        proposed = most
        why += f"; {most}, since the visibility timeout has to last for all that is reserved"
    fits = facts.prefetch == proposed or (1 < facts.prefetch <= proposed <= 4 * facts.prefetch)
    now = facts.prefetch
    yield Proposal("conf", name, now, now if fits else proposed, why, how_sure(times))


def reserve(facts: Facts) -> Iterator[Proposal]:
    """A lane whose promise is shorter than jobs of lower lanes needs a process of its own."""
    lanes = facts.configured_lanes
    free = _unreserved(facts)
    for n, lane in enumerate(lanes[:-1]):
        lower = Histogram()
        for other in lanes[n + 1 :]:
            lower = lower + other.times
        if not lower.runs or lane.lane is None:
            continue
        promise_s = lane.lane.deadline_s or PROMISE_S
        p99_s = lower.quantile(0.99)
        wanted = lane.lane.reserve
        if p99_s <= promise_s:
            why = f"jobs of lower lanes end within {spoken_s(p99_s)} (p99): no process is blocked"
        else:
            wanted = max(wanted, 1, math.ceil(2 * _busy(lane, facts)))
            why = (
                f"jobs of lower lanes take up to {spoken_s(p99_s)} (p99), longer than "
                f"{spoken_s(promise_s)}; no weight helps when they hold every process"
            )
        more = wanted - lane.lane.reserve
        if more > free:
            wanted = lane.lane.reserve + int(free)
            why += f"; {wanted}, since worker_concurrency {facts.processes} has to leave one free"
        free -= min(more, free)
        place = f"lanes.{lane.name}"
        yield Proposal(place, "reserve", lane.lane.reserve, wanted, why, how_sure(lower))


def weights(facts: Facts) -> Iterator[Proposal]:
    """Charged in seconds where jobs are unlike in length; a lane that needs more of the time than
    its weight gives it gets a higher one, unless it is the last."""
    lanes = [lane for lane in facts.configured_lanes if lane.times.runs]
    if len(lanes) < 2:
        return
    times = _all(lanes)
    means = [lane.times.mean_s for lane in lanes]
    unlike = max(means) / max(min(means), 0.0001)
    charge = facts.charge
    shares = ", ".join(
        f"{lane.name} {share:.0%}" for lane, share in zip(lanes, _by_messages(lanes), strict=True)
    )
    why = f"charged by messages, lanes that all have work get of the time: {shares}"
    if unlike >= UNLIKE:
        charge = "seconds"
        why += f" (a job of one takes {unlike:.0f} times as long as one of another)"
    yield Proposal("idem", "charge", facts.charge, charge, why, how_sure(times))
    yield from _weights(lanes, times)


def warnings(facts: Facts) -> Iterator[str]:
    """What no setting mends."""
    for task in facts.tasks:
        hills = task.times.peaks()
        if len(hills) > 1:
            kinds = " and ".join(f"{hill.share:.0%} around {spoken_s(hill.at_s)}" for hill in hills)
            yield (
                f"{task.name}: two kinds of work under one name, {kinds}. One lease, one limit and "
                "one lane can't fit both: make them two tasks"
            )
        limit_s = task.time_limit_s
        if limit_s and task.times.share_above(0.95 * limit_s):
            stopped = task.times.share_above(0.95 * limit_s)
            yield f"{task.name}: {stopped:.1%} of runs reached the time limit of {limit_s:g} s"
        if task.lease_s is not None and task.times.runs:
            yield from _own_lease(task)
    if facts.never_ran:
        yield f"not run in {facts.days} days: {', '.join(facts.never_ran)}"


def _beyond_the_app(now: Facts, then: Facts) -> Iterator[str]:
    """Where a proposed limit needs more than the app's settings."""
    timeout_s = now.consumer_timeout_s
    limits_s = {task.name: task.time_limit_s for task in now.tasks}
    for task in then.tasks:
        limit_s = task.time_limit_s
        if timeout_s is None or limit_s is None or limit_s == limits_s[task.name]:
            continue
        if task.acks_late and limit_s >= timeout_s:
            yield (
                f"{task.name}: RabbitMQ closes the channel of a run that lasts for its "
                f"consumer_timeout, {timeout_s:g} s by default; with a limit of {limit_s:g} s it "
                f"has to be longer: consumer_timeout = {round(2000 * limit_s)} in rabbitmq.conf"
            )


def _own_lease(task: TaskFacts) -> Iterator[str]:
    assert task.lease_s is not None
    if task.lease_s > 4 * MOST_LEASE_S and task.lease_s > 10 * task.times.longest_s:
        yield (
            f"{task.name}: its own lease of {task.lease_s:g} s is much longer than its longest "
            f"run, {spoken_s(task.times.longest_s)}: a dead worker's job waits for all of it"
        )


def _may_run_s(task: TaskFacts) -> float:
    """The longest that a run may take: its limit, else three times what was seen."""
    return task.time_limit_s or LIMIT_FACTOR * task.times.longest_s


def _longest_run_s(facts: Facts) -> float:
    return max((_may_run_s(task) for task in facts.every), default=0.0)


def _longest_pause_s(facts: Facts) -> float:
    pauses = (policy.pause_s for task in facts.every for policy in task.policies)
    return max((facts.delay_s, *pauses))


def _all_known(facts: Facts) -> bool:
    """Whether each task has a limit, or runs to go by."""
    return all(task.time_limit_s or task.times.runs for task in facts.every)


def _most_prefetch(facts: Facts) -> int:
    """What may be reserved so that the visibility timeout, as it is, lasts for all of it."""
    now_s, longest_s = facts.visibility_timeout_s, _longest_run_s(facts)
    if now_s is None or not longest_s:
        return MOST_PREFETCH
    lasts = int((now_s - _longest_pause_s(facts)) // longest_s) - 1
    return max(1, facts.prefetch, lasts)


def _unreserved(facts: Facts) -> float:
    """Processes of a worker that lanes may still reserve, so that one is left to all."""
    if not facts.processes:
        return math.inf
    lanes = [it.lane for it in facts.configured_lanes[:-1] if it.lane]
    return max(0, facts.processes - 1 - sum(lane.reserve for lane in lanes))


def _busy(lane: LaneFacts, facts: Facts) -> float:
    """Processes that the lane keeps busy, on average over the days that were measured."""
    return lane.times.total_s / (facts.days * 86400.0)


def _all(lanes: list[LaneFacts]) -> Histogram:
    whole = Histogram()
    for lane in lanes:
        whole = whole + lane.times
    return whole


def _by_messages(lanes: list[LaneFacts]) -> list[float]:
    """Each lane's share of the time when all have work and are charged by messages."""
    times = [_weight(lane) * lane.times.mean_s for lane in lanes]
    return [each / sum(times) for each in times]


def _weight(lane: LaneFacts) -> float:
    return lane.lane.weight if lane.lane else 1.0


def _weights(lanes: list[LaneFacts], times: Histogram) -> Iterator[Proposal]:
    whole = sum(_weight(lane) for lane in lanes)
    for lane in lanes[:-1]:
        share, needs = _weight(lane) / whole, lane.times.total_s / times.total_s
        weight, proposed = _weight(lane), _weight(lane)
        why = f"{needs:.0%} of the work, {share:.0%} by weight"
        if needs > share:
            proposed = float(math.ceil(weight * 1.25 * needs / share))
            why += ": while all lanes have work it would fall behind"
        yield Proposal(f"lanes.{lane.name}", "weight", weight, proposed, why, how_sure(lane.times))
