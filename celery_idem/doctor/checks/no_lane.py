"""A task goes to a queue that is no lane.

Where there are lanes, workers are started with `-Q critical,normal,low`: a task that names no
lane goes to the default queue (`celery`), which nobody consumes. And a worker that does consume
it serves it as a lane of weight 1, ranked last.

Routes that are functions are not called; tasks that they may route are left out.

**Mend it:** give the task a lane, or name the queue as a lane.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.paste import change
from celery_idem.doctor.project import Project
from celery_idem.doctor.routes import declared_queues, queue_of
from celery_idem.lanes.routing import lanes_of


def look(project: Project) -> Iterator[Finding]:
    if not project.settings.lanes:
        return
    lanes = {lane.queue for lane in lanes_of(project.settings)}
    for facts in project.tasks:
        queue = queue_of(project, facts.task)
        if queue is not None and queue not in lanes:
            yield _finding(queue, facts.name, facts.place, lanes)
    for declared in declared_queues(project.app):
        if declared not in lanes:
            yield Finding(
                f"the queue {declared!r} is declared, and is no lane",
                remedy=change("idem", lanes={declared: 1}),
                setting="task_queues",
                value=declared,
            )


def _finding(queue: str, task: str, place: object, lanes: set[str]) -> Finding:
    return Finding(
        f"it goes to the queue {queue!r}, which is no lane",
        remedy=f"lane={sorted(lanes)[-1]!r}  # on the task; or {change('idem', lanes={queue: 1})}",
        task=task,
        setting='idem["lanes"]',
        value=", ".join(sorted(lanes)),
        place=place,  # type: ignore[arg-type]
    )


CHECK = Check("IDEM033", "a queue that is no lane", Severity.WARNING, look)
