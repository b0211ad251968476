"""Which queue a task's messages go to, as far as that can be told without calling a router."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Any

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
    for route in _routes(project.app.conf.task_routes):
        if isinstance(route, LaneRouter):
            found = route._by_pattern(task.name)
            if found:
                return lane_named(lanes_of(project.settings), found).queue
        elif isinstance(route, Mapping):
            for pattern, target in route.items():
                if _matches(pattern, task.name):
                    return _destination(target)
        else:
            return None
    return str(project.app.conf.task_default_queue)


def _routes(given: Any) -> Iterable[Any]:
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)):
        given = (given,)
    # a list of pairs stands for a mapping
    return [dict([it]) if isinstance(it, tuple) and len(it) == 2 else it for it in given]


def _matches(pattern: Any, name: str) -> bool:
    if isinstance(pattern, re.Pattern):
        return bool(pattern.match(name))
    return fnmatch.fnmatchcase(name, str(pattern))


def _destination(target: Any) -> str | None:
    if isinstance(target, str):
        return target
    queue = target.get("queue") if isinstance(target, Mapping) else None
    return str(getattr(queue, "name", queue)) if queue else None
