"""How long done records are kept, by the limits and the visibility timeout that are proposed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from celery_idem.core.retry_window import (
    LEAST_RETENTION_S,
    RetryPolicy,
    RetryWindow,
    least_retention,
    retry_window,
    spoken,
)
from celery_idem.core.retry_window import retention as kept_for
from celery_idem.options import longest_window
from celery_idem.tuning.facts import Facts, Proposal, TaskFacts

_SURE = "exact: from the tasks' own options and what is proposed here"


def retention(facts: Facts) -> Iterator[Proposal]:
    """Computed by each task from its own retries, unless it is set, for it or for the app: then at
    least that."""
    tasks = [task for task in facts.every if task.policies]
    own: dict[str, Proposal] = {}
    for proposal in (each for task in tasks for each in _of_one(task, facts)):
        least = own.setdefault(proposal.place, proposal)
        own[proposal.place] = max(least, proposal, key=lambda each: float(each.proposed))
    yield from own.values()
    general = [task for task in tasks if task.retention_s is None]
    if not general:
        return
    longest = max(general, key=lambda task: _least_s(task, facts))
    why = (
        f"2 × the retry window of {longest.name}, the longest: {_window(longest, facts).sum_text()}"
    )
    if facts.retention_s is None:
        if _least_s(longest, facts) < LEAST_RETENTION_S:
            why = f"a day is more than {why} × 2"
        most_s = max(_kept_s(task, facts) for task in general)
        why = f"computed by each task, at most {spoken(most_s)}; {why}"
        yield Proposal("idem", "retention_s", None, None, why, _SURE)
        return
    now_s, least_s = facts.retention_s, float(math.ceil(_least_s(longest, facts)))
    yield Proposal("idem", "retention_s", now_s, max(now_s, least_s), why, _SURE)


def result_expires(now: Facts, then: Facts) -> Iterator[Proposal]:
    """A big result is kept as long as the record that refers to it, where that is to be kept for
    longer than now."""
    expires_s = now.result_expires_s
    if expires_s is None:
        return
    kept = [
        _kept_s(task, then)
        for task, before in zip(then.every, now.every, strict=True)
        if task.policies and task.returns_much and _kept_s(task, then) > _kept_s(before, now)
    ]
    if kept and max(kept) > expires_s:
        why = f"records are kept for {spoken(max(kept))}, and refer to big results"
        yield Proposal("conf", "result_expires", expires_s, float(math.ceil(max(kept))), why, _SURE)


def _of_one(task: TaskFacts, facts: Facts) -> Iterator[Proposal]:
    """A value of its own that is too short; or the computed one, which knows nothing of the
    countdowns that the body names."""
    if task.retention_s is None and facts.retention_s is not None:
        return
    least_s = _least_s(task, facts)
    if _kept_s(task, facts) < least_s:
        why = f"2 × its retry window: {_window(task, facts).sum_text()}"
        proposed_s = float(math.ceil(least_s))
        place, now_s = task.place_of("retention_s"), task.retention_s
        yield Proposal(place, "retention_s", now_s, proposed_s, why, _SURE)


def _kept_s(task: TaskFacts, facts: Facts) -> float:
    """As it is set or computed, long enough or not."""
    explicit_s = facts.retention_s if task.retention_s is None else task.retention_s
    return kept_for(_by_options(task, facts), None) if explicit_s is None else explicit_s


def _least_s(task: TaskFacts, facts: Facts) -> float:
    return least_retention(_window(task, facts))


def _window(task: TaskFacts, facts: Facts) -> RetryWindow:
    """With the countdowns that its body names, as the doctor counts them (IDEM002)."""
    window = _by_options(task, facts)
    if task.countdown_s is None:
        return window
    asked = replace(_policies(task, facts)[0], delay_s=task.countdown_s, backoff=0.0)
    return longest_window((window, retry_window(asked)))


def _by_options(task: TaskFacts, facts: Facts) -> RetryWindow:
    return longest_window(retry_window(policy) for policy in _policies(task, facts))


def _policies(task: TaskFacts, facts: Facts) -> list[RetryPolicy]:
    run_s = task.time_limit_s or 0.0
    return [
        replace(each, redelivery_s=facts.visibility_timeout_s or each.redelivery_s, run_s=run_s)
        for each in task.policies
    ]
