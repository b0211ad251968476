"""Which queue a task's messages go to, as far as that can be told without calling a router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.app.routes import MapRoute, prepare

from celery_idem.doctor.project import Project
from celery_idem.lanes.routing import LaneRouter, lane_named, lanes_of


def queue_of(project: Project, task: Any) -> str | None:
    """The queue's name; None where a function decides, or an exchange is named."""
    lane = getattr(task, "lane", None)
    own = _destination({"queue": getattr(task, "queue", None)})
    if lane:
        names = {it.name for it in lanes_of(project.settings)}
        return lane_named(lanes_of(project.settings), lane).queue if lane in names else None
    if own:
        return own
    for route in prepare(project.app.conf.task_routes):
        if isinstance(route, LaneRouter):
            found = route._by_pattern(task.name)
            if found:
                return lane_named(lanes_of(project.settings), found).queue
        elif isinstance(route, MapRoute):  # a dict: exact names count before patterns
            target = route(task.name)
            if target is not None:
                return _destination(target)
        else:
            return None
    return str(project.app.conf.task_default_queue)


def declared_queues(app: Any) -> list[str]:
    """Names of ``task_queues``, which Celery takes as a list and as a dict
    (``celery/app/amqp.py``)."""
    given = app.conf.task_queues or ()
    named = given.items() if isinstance(given, Mapping) else [(it.name, it) for it in given]
    return [str(getattr(queue, "name", name)) for name, queue in named]


def _destination(target: Any) -> str | None:
    if isinstance(target, str):
        return target
    queue = target.get("queue") if isinstance(target, Mapping) else None
    return str(getattr(queue, "name", queue)) if queue else None
