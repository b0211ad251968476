"""A done record is kept for less than twice the task's retry window.

The record of a finished job is what keeps a late copy of its message from running the body again.
A copy can turn up as long as the job can still be retried or redelivered. That is the retry
window: the sum of all delays, all runs and one redelivery. A record must outlive it twofold,
because full queues stretch every delay.

The sum counts the task's options and what its body says: `self.retry(countdown=…)` with a number
counts where it makes the window longer.

**Mend it:** set `retention_s` to what the finding says, or let the task give up earlier
(`max_retries`). Without an explicit `retention_s` it is computed from the options.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from celery_idem.core.errors import ConfigError
from celery_idem.core.retry_window import (
    RetryWindow,
    least_retention,
    retention,
    retry_window,
    spoken,
)
from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project, TaskFacts
from celery_idem.doctor.source.delays import longest_retry_countdown_s
from celery_idem.options import (
    longest_window,
    retry_policies,
    window_of,
)


def look(project: Project) -> Iterator[Finding]:
    for facts in project.idempotent_tasks:
        window = _window(project, facts)
        kept_s = _kept_s(project, facts)
        least_s = least_retention(window)
        if kept_s < least_s:
            yield _finding(facts, window, kept_s, least_s)


def _window(project: Project, facts: TaskFacts) -> RetryWindow:
    window = window_of(facts.task, project.redelivery_s)
    countdown_s = longest_retry_countdown_s(project.reader.source_of_task(facts.task))
    if countdown_s is None:
        return window
    asked, _ = retry_policies(facts.task, project.redelivery_s)
    by_hand = retry_window(replace(asked, delay_s=countdown_s, backoff=0.0))
    return longest_window((window, by_hand))


def _kept_s(project: Project, facts: TaskFacts) -> float:
    own = facts.task.retention_s
    explicit_s = project.settings.retention_s if own is None else own
    if explicit_s is not None:
        return float(explicit_s)
    try:
        return retention(window_of(facts.task, project.redelivery_s), None)
    except ConfigError:  # pragma: no cover - only an explicit one is refused
        return 0.0


def _finding(facts: TaskFacts, window: RetryWindow, kept_s: float, least_s: float) -> Finding:
    what = "longest pause between two retries" if window.endless else "retry window"
    total_s = least_s / 2
    return Finding(
        f"retention {kept_s:g} s is shorter than twice the {what}",
        arithmetic=f"2 × {spoken(total_s)} ({window.sum_text()}) = {math.ceil(least_s)} s "
        f"> {kept_s:g} s",
        remedy=f"retention_s={math.ceil(least_s)}",
        task=facts.name,
        setting="retention_s",
        value=f"{kept_s:g}",
        place=facts.place,
    )


CHECK = Check("IDEM002", "retention is shorter than twice the retry window", Severity.ERROR, look)
