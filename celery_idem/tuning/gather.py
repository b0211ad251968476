"""The facts of a project: its tasks' options, its lanes, and the run times in its store."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery_idem.binding import binding_of
from celery_idem.core.histogram import Histogram
from celery_idem.core.retry_window import RetryPolicy
from celery_idem.doctor.project import Project
from celery_idem.doctor.project import TaskFacts as Task
from celery_idem.lanes.routing import lanes_of
from celery_idem.options import DEFAULT_VISIBILITY_TIMEOUT_S, window_of
from celery_idem.tuning.facts import Facts, LaneFacts, TaskFacts

#: (task, queue) → run times
Measured = Mapping[tuple[str, str], Histogram]


def gather(app: Any, days: int, patterns: Sequence[str] = ()) -> Facts:
    """What is known of the app, of the tasks that a pattern matches (all, without one).

    Imports the app's task modules, as a worker does, and asks the store. Raises
    :class:`~celery_idem.core.errors.StoreUnavailable` when that can't be reached.
    """
    project = Project(app)
    measured = {
        kind: times
        for kind, times in binding_of(project.app).store.run_times(days).items()
        if _matches(kind[0], patterns)
    }
    tasks = {task.name: task for task in project.tasks if _matches(task.name, patterns)}
    ran = {name for name, _ in measured}
    return Facts(
        tasks=tuple(_task(project, name, tasks.get(name), measured) for name in sorted(ran)),
        lanes=tuple(_lanes(project, measured)),
        lease_s=project.settings.lease_s,
        visibility_timeout_s=project.visibility_timeout_s,
        kept=project.kept,
        charge=project.settings.charge,
        prefetch=int(project.app.conf.worker_prefetch_multiplier or 0),
        days=days,
        never_ran=tuple(sorted(name for name in tasks if name not in ran)),
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _task(project: Project, name: str, found: Task | None, measured: Measured) -> TaskFacts:
    times = _sum(times for (task, _), times in measured.items() if task == name)
    if found is None:  # recorded by workers of another release or another app on this store
        return TaskFacts(name, times, idempotent=False)
    task = found.task
    soft_s = task.soft_time_limit or project.app.conf.task_soft_time_limit
    return TaskFacts(
        name,
        times,
        idempotent=found.idempotent,
        lease_s=task.lease_s if found.idempotent else None,
        time_limit_s=found.time_limit_s,
        soft_time_limit_s=float(soft_s) if soft_s else None,
        retention_s=_retention_s(project, task) if found.idempotent else None,
        policy=_policy(project, task) if found.idempotent else None,
    )


def _retention_s(project: Project, task: Any) -> float | None:
    own: float | None = task.retention_s
    return project.settings.retention_s if own is None else own


def _policy(project: Project, task: Any) -> RetryPolicy:
    timeout_s = project.visibility_timeout_s or DEFAULT_VISIBILITY_TIMEOUT_S
    return window_of(task, timeout_s).policy


def _lanes(project: Project, measured: Measured) -> Iterable[LaneFacts]:
    configured = lanes_of(project.settings)
    for lane in configured:
        yield LaneFacts(lane.name, _of_queue(lane.queue, measured), lane)
    known = {lane.queue for lane in configured}
    for queue in sorted({queue for _, queue in measured} - known):
        yield LaneFacts(queue or "(no queue)", _of_queue(queue, measured))


def _of_queue(queue: str, measured: Measured) -> Histogram:
    return _sum(times for (_, its), times in measured.items() if its == queue)


def _sum(many: Iterable[Histogram]) -> Histogram:
    whole = Histogram()
    for one in many:
        whole = whole + one
    return whole
