"""The visibility timeout is shorter than a run may last, and nothing renews it.

On Redis (kombu's own transport) and SQS a message that is not acked comes back after the
visibility timeout, whoever works on it: a second worker starts a job that is still running, and a
third one after the next timeout (C02). What waits in a worker's prefetch waits unacked, too.

The visibility keeper renews the timeout while the worker lives, so with it (the default of every
app with an `IdempotentTask` on Redis) this check finds nothing. Without it the timeout must be
longer than the hard time limit; and, with a prefetch of more than one, longer than all the runs
that a message may wait for.

**Mend it:** let the keeper work (`visibility_keeper: True`), or set the timeout to what the
finding says, for every app on that server alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.paste import change
from celery_idem.doctor.project import Project, TaskFacts


def look(project: Project) -> Iterator[Finding]:
    timeout_s = project.visibility_timeout_s
    if timeout_s is None or project.kept:
        return
    prefetch = max(int(project.app.conf.worker_prefetch_multiplier or 0), 1)
    for facts in project.tasks:
        limit_s = facts.time_limit_s
        if not facts.acks_late or limit_s is None:
            continue
        if limit_s >= timeout_s:
            yield _too_long(facts, limit_s, prefetch, timeout_s)
        elif limit_s * prefetch > timeout_s:
            yield _waits_too_long(facts, limit_s, prefetch, timeout_s)


def _too_long(facts: TaskFacts, limit_s: float, prefetch: int, timeout_s: float) -> Finding:
    return Finding(
        f"a run may last {limit_s:g} s, and its message comes back after {timeout_s:g} s",
        arithmetic=f"time limit {limit_s:g} s >= visibility timeout {timeout_s:g} s",
        remedy=_remedy(2 * prefetch * limit_s),  # what is prefetched waits for it, too
        task=facts.name,
        setting='broker_transport_options["visibility_timeout"]',
        value=f"{timeout_s:g}",
        place=facts.place,
    )


def _waits_too_long(facts: TaskFacts, limit_s: float, prefetch: int, timeout_s: float) -> Finding:
    return Finding(
        f"a prefetched message may wait for {prefetch} runs of {limit_s:g} s, and comes back after "
        f"{timeout_s:g} s",
        arithmetic=f"{prefetch} × {limit_s:g} s = {prefetch * limit_s:g} s > visibility timeout "
        f"{timeout_s:g} s",
        remedy=f"app.conf.worker_prefetch_multiplier = 1  # or {_remedy(2 * prefetch * limit_s)}",
        task=facts.name,
        setting="worker_prefetch_multiplier",
        value=str(prefetch),
        place=facts.place,
        severity=Severity.WARNING,
    )


def _remedy(seconds: float) -> str:
    return change("broker_transport_options", visibility_timeout=seconds)


CHECK = Check("IDEM010", "the visibility timeout is shorter than a run", Severity.ERROR, look)
