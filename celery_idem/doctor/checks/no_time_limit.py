"""A body that hangs would hold its key for ever: there is no time limit and no `max_lease_s`.

A worker renews the lease of a body as long as its process lives. That is right for a long job,
and wrong for one that waits for an answer that never comes: nobody else may take the key over,
and no dead letter is written. A hard time limit ends the process; `max_lease_s` ends the
renewing.

Time limits work in the prefork pool. In the others (threads, gevent, solo) set `max_lease_s`.

**Mend it:** one line for the whole app is enough, with a number that no healthy run needs.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project


def look(project: Project) -> Iterator[Finding]:
    if project.settings.max_lease_s is not None:
        return
    for facts in project.idempotent_tasks:
        if facts.time_limit_s is None and facts.task.max_lease_s is None:
            yield Finding(
                "a run that hangs keeps its key for ever: no time_limit, no max_lease_s",
                remedy="app.conf.task_time_limit = 3600  # or time_limit= on the task",
                task=facts.name,
                setting="task_time_limit",
                value="None",
                place=facts.place,
            )


CHECK = Check("IDEM014", "nothing ends a body that hangs", Severity.WARNING, look)
