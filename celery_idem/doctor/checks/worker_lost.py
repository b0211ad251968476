"""A task acks late, but is lost when its process is killed.

`acks_late` alone does not survive the death of a pool process (out of memory, SIGKILL): the
worker marks the task as failed and acks its message (C16). It takes `reject_on_worker_lost=True`
as well; a crash limit, as an `IdempotentTask` has it, keeps a message that kills its process from
coming back for ever (C38).

**Mend it:** `reject_on_worker_lost=True` beside `acks_late=True`, or `base=IdempotentTask`, which
has both. In Celery 5.7 `retry_on_worker_lost=True` is another way.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project


def look(project: Project) -> Iterator[Finding]:
    for facts in project.plain_tasks:
        task = facts.task
        if not facts.acks_late or task.reject_on_worker_lost:
            continue
        if getattr(task, "retry_on_worker_lost", False):
            continue
        yield Finding(
            "it acks late, and is acked unfinished when its process is killed",
            remedy="app.conf.task_reject_on_worker_lost = True",
            task=facts.name,
            setting="task_reject_on_worker_lost",
            value=str(task.reject_on_worker_lost),
            place=facts.place,
        )


CHECK = Check("IDEM021", "late acks without reject_on_worker_lost", Severity.WARNING, look)
