"""A task asks not to ack its failures, but is acked when it is killed at its time limit.

Celery 5.7 has two settings: `acks_on_failure` and `acks_on_timeout`. With the first off and the
second on, the message of a task that hits its hard time limit is acked, and the job is gone
(C25).

**Mend it:** `acks_on_timeout=False`, or keep letters of plain tasks (`dead_letters: {"all_tasks":
True}`), or `base=IdempotentTask`, where a timeout becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.checks.failure_deleted import acks_on
from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.paste import change
from celery_idem.doctor.project import Project, TaskFacts


def look(project: Project) -> Iterator[Finding]:
    if project.settings.dead_letters.get("all_tasks"):
        return
    for facts in project.plain_tasks:
        if facts.acks_late and facts.time_limit_s is not None and _loses(facts):
            yield Finding(
                f"killed at its time limit of {facts.time_limit_s:g} s, it is acked and gone",
                remedy=change("idem", dead_letters={"all_tasks": True}),
                task=facts.name,
                setting="acks_on_timeout",
                value="True",
                place=facts.place,
            )


def _loses(facts: TaskFacts) -> bool:
    if not acks_on(facts.task, "acks_on_timeout"):
        return False
    return not acks_on(facts.task, "acks_on_failure")


CHECK = Check("IDEM023", "messages of timed-out tasks are acked", Severity.WARNING, look)
