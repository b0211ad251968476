"""The facts of a project: its tasks' options, its lanes, and the run times in its store."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from celery.backends.base import DisabledBackend

from celery_idem.binding import binding_of
from celery_idem.core.histogram import Histogram
from celery_idem.doctor.checks.failure_deleted import acks_on
from celery_idem.doctor.checks.prefetch import CHOOSES
from celery_idem.doctor.delays import longest_delays
from celery_idem.doctor.project import Project
from celery_idem.doctor.project import TaskFacts as Task
from celery_idem.doctor.rabbitmq import DEFAULT_TIMEOUT_S
from celery_idem.doctor.source.delays import longest_retry_countdown_s
from celery_idem.doctor.source.returns import may_return_much
from celery_idem.lanes.routing import lanes_of
from celery_idem.options import retry_policies
from celery_idem.tuning.facts import Facts, LaneFacts, TaskFacts

#: (task, queue) → run times
Measured = Mapping[tuple[str, str], Histogram]

#: SQS takes no longer visibility timeout, in seconds.
SQS_MOST_VISIBILITY_S = 43200.0


def gather(app: Any, days: int, patterns: Sequence[str] = ()) -> Facts:
    """What is known of the app; asked for are the tasks that a pattern matches (all, without one).

    Imports the app's task modules, as a worker does, and asks the store. Raises
    :class:`~celery_idem.core.errors.StoreUnavailable` when that can't be reached.
    """
    project = Project(app)
    conf, settings = project.app.conf, project.settings
    measured = binding_of(project.app).store.run_times(days)
    tasks = {task.name: task for task in project.tasks}
    ran = {name for name, _ in measured}
    facts = {name: _task(project, name, tasks.get(name), measured) for name in {*tasks, *ran}}
    asked = {name for name in facts if _matches(name, patterns)}
    return Facts(
        tasks=tuple(facts[name] for name in sorted(asked & ran)),
        others=tuple(facts[name] for name in sorted(facts.keys() - (asked & ran))),
        lanes=tuple(_lanes(project, measured)),
        lease_s=settings.lease_s,
        retention_s=settings.retention_s,
        max_lease_s=settings.max_lease_s,
        visibility_timeout_s=project.visibility_timeout_s,
        most_visibility_s=SQS_MOST_VISIBILITY_S if project.broker == "sqs" else None,
        delay_s=_longest_delay_s(project),
        consumer_timeout_s=DEFAULT_TIMEOUT_S if project.broker == "amqp" else None,
        kept=project.kept,
        charge=settings.charge,
        prefetch=int(conf.worker_prefetch_multiplier or 0),
        lanes_choose=project.broker in CHOOSES and project.serves_lanes,
        processes=int(conf.worker_concurrency) if conf.worker_concurrency else None,
        result_expires_s=_result_expires_s(project),
        annotations_merge=isinstance(conf.task_annotations or {}, Mapping),
        days=days,
        never_ran=tuple(sorted(asked - ran)),
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _task(project: Project, name: str, found: Task | None, measured: Measured) -> TaskFacts:
    times = _sum(times for (task, _), times in measured.items() if task == name)
    if found is None:  # recorded by workers of another release or another app on this store
        return TaskFacts(name, times, idempotent=False)
    task = found.task
    soft_s = task.soft_time_limit or project.app.conf.task_soft_time_limit
    facts = TaskFacts(
        name,
        times,
        idempotent=found.idempotent,
        time_limit_s=found.time_limit_s,
        soft_time_limit_s=float(soft_s) if soft_s else None,
        acks_late=found.acks_late,
        set_for_all=frozenset(_annotations_of_all(project)),
    )
    if not found.idempotent:
        return replace(facts, lost_at_limit=_is_lost_at_limit(project, found))
    source = project.reader.source_of_task(task)
    return replace(
        facts,
        lease_s=task.lease_s,
        retention_s=task.retention_s,
        max_lease_s=task.max_lease_s,
        policies=retry_policies(task, project.redelivery_s),
        countdown_s=longest_retry_countdown_s(source),
        returns_much=source is None or may_return_much(source),
    )


def _annotations_of_all(project: Project) -> Iterable[str]:
    given = project.app.conf.task_annotations
    return (given.get("*") or {}) if isinstance(given, Mapping) else ()


def _is_lost_at_limit(project: Project, found: Task) -> bool:
    """Whether a message that is acked late is gone when its run is killed at a time limit."""
    if not found.acks_late or project.settings.dead_letters.get("all_tasks"):
        return False
    return acks_on(found.task, "acks_on_timeout") and not acks_on(found.task, "acks_on_failure")


def _longest_delay_s(project: Project) -> float:
    """That the tasks' options and the project's source name; the keeper minds none."""
    if project.visibility_timeout_s is None or project.kept:
        return 0.0
    return max((delay.seconds for delay in longest_delays(project, 0.0)), default=0.0)


def _result_expires_s(project: Project) -> float | None:
    given = project.app.conf.result_expires
    if not given or isinstance(project.app.backend, DisabledBackend):
        return None
    return given.total_seconds() if isinstance(given, timedelta) else float(given)


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
