"""An idempotent task has an option that breaks its promise or means nothing.

`acks_late=False` and `reject_on_worker_lost=False` lose the job when a process is killed; a key
template may name an argument that the task does not take; a lane may not exist; a key function
may read a clock. Workers refuse to start with such a task, and producers to send it. An
`idem_key` on a task whose `base=IdempotentTask` was forgotten means nothing either: it is found,
and refused by workers that have idempotent tasks as well.

**Mend it:** as the finding says.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.core.errors import IdemError
from celery_idem.core.retry_window import LEAST_RETENTION_S
from celery_idem.doctor.finding import Check, Finding, Place, Severity
from celery_idem.doctor.project import Project, TaskFacts
from celery_idem.lanes.routing import lane_named, lanes_of
from celery_idem.options import check_plain, terms_kept


def look(project: Project) -> Iterator[Finding]:
    for broken in project.broken:
        task = project.app._tasks.get(broken.name)
        place = project.reader.place_of_task(task) if task is not None else None
        yield _finding(broken.name, broken.error, place)
    for facts in project.tasks:
        error = _terms_error(project, facts) or _lane_error(project, facts)
        if error is not None:
            yield _finding(facts.name, error, facts.place)


def _terms_error(project: Project, facts: TaskFacts) -> IdemError | None:
    try:
        if not facts.idempotent:
            check_plain(facts.task)
            return None
        # a retention that is too short is a check of its own
        terms_kept(facts.task, project.settings, LEAST_RETENTION_S)
    except IdemError as error:
        return error
    return None


def _lane_error(project: Project, facts: TaskFacts) -> IdemError | None:
    lane = getattr(facts.task, "lane", None)
    if not lane:
        return None
    try:
        lane_named(lanes_of(project.settings), lane)
    except IdemError as error:
        return error
    return None


def _finding(name: str, error: IdemError, place: Place | None) -> Finding:
    # errors of this package say what is wrong; then what to do
    what, _, remedy = str(error).removeprefix(f"{name}: ").partition("; ")
    return Finding(what, remedy or what, task=name, place=place)


CHECK = Check("IDEM003", "an idempotent task can't keep its promise", Severity.ERROR, look)
