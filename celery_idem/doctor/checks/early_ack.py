"""A plain task with effects outside is acked before it runs: a worker that is killed loses it.

`acks_late` is off by default in Celery: the message is gone as soon as the task starts. When the
process dies (out of memory, a deploy, a power cut) the mail is not sent, and nothing tells so
(S-V2).

Only tasks that call known clients are named: for a refresh that comes again in a minute, early
acks are fine.

**Mend it:** `base=IdempotentTask`, which acks late and is safe to repeat. `acks_late=True` alone
trades a lost mail for one sent twice (`IDEM051`).
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project


def look(project: Project) -> Iterator[Finding]:
    for facts in project.plain_tasks:
        if facts.acks_late:
            continue
        effects = [it for it in project.effects_of(facts).every if not it.grows]
        if effects:
            yield Finding(
                f"killed while it runs, it is lost: {effects[0].shown} may never happen",
                remedy='base=IdempotentTask, idem_key="{…}"  # of the arguments that name the work',
                task=facts.name,
                setting="task_acks_late",
                value="False",
                place=facts.place,
            )


CHECK = Check(
    "IDEM020", "a task with effects is acked before it runs", Severity.INFO, look, reads_source=True
)
