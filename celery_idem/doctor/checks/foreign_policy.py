"""Workers on the same Redis database follow another visibility timeout: the shortest one wins.

kombu's workers put back everybody's unacked messages by their own setting, whoever's they are
(C04). An app with a timeout of 3 s on the same database starts your jobs again after 3 s, while
they run.

The check asks the workers that are there now. With the visibility keeper your messages can't be
taken by others; yours still take theirs, where this app's timeout is the shorter one. An app of
plain tasks has no keeper.

**Mend it:** a database or a `global_keyprefix` for each app, or the same timeout in all of them,
or the keeper (`install_visibility(app)`).
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.fleet import Worker
from celery_idem.doctor.paste import change
from celery_idem.doctor.project import Project


def look(project: Project) -> Iterator[Finding]:
    own_s = project.visibility_timeout_s
    if project.broker != "redis" or own_s is None:
        return
    for worker in project.servers.fleet.workers:
        if worker.visibility_timeout_s < own_s and not project.kept:
            yield _finding(project, worker, own_s, "puts your messages back", Severity.ERROR)
        elif worker.visibility_timeout_s > own_s and not (project.kept and worker.ours):
            what = "loses its messages to your workers"
            yield _finding(project, worker, own_s, what, Severity.WARNING)


def _finding(
    project: Project, worker: Worker, own_s: float, what: str, severity: Severity
) -> Finding:
    theirs_s = worker.visibility_timeout_s
    return Finding(
        f"the worker {worker.name} (queues {', '.join(sorted(worker.queues))}) on the same "
        f"database {what} after {min(theirs_s, own_s):g} s",
        arithmetic=f"its visibility timeout {theirs_s:g} s, this app's {own_s:g} s: "
        "the shorter one holds for both",
        remedy=change("broker_transport_options", global_keyprefix=f"{project.app.main or 'app'}:")
        + "  # or a database of its own",
        setting='broker_transport_options["visibility_timeout"]',
        value=f"{own_s:g}",
        severity=severity,
    )


CHECK = Check(
    "IDEM042",
    "another app on the same database has another timeout",
    Severity.ERROR,
    look,
    asks_servers=True,
)
