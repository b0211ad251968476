"""Which queue a lane's messages go to, for idempotent tasks and plain ones."""

from __future__ import annotations

import difflib
import fnmatch
import time
from collections.abc import Mapping, Sequence
from typing import Any

from celery_idem.core.errors import ConfigError
from celery_idem.core.order import Lane, parse_lanes
from celery_idem.core.settings import Settings
from celery_idem.delivery import LANE_HEADER

#: Header with the time of publishing, in seconds since 1970 by the producer's clock.
SENT_HEADER = "idem_sent_s"
#: Message priorities that every broker knows.
PRIORITIES = range(10)

#: Options that say where a message goes.
DESTINATION = ("queue", "exchange", "routing_key")


def lanes_of(settings: Settings) -> tuple[Lane, ...]:
    """The lanes of ``idem["lanes"]``, ranked as they are written."""
    return parse_lanes(settings.lanes)


def lane_named(lanes: Sequence[Lane], name: str) -> Lane:
    """The lane of this name. Raises :class:`ConfigError` that names the nearest right one."""
    for lane in lanes:
        if lane.name == name:
            return lane
    names = [lane.name for lane in lanes]
    if not names:
        raise ConfigError(
            f"lane {name!r}: no lanes are configured; set idem['lanes'], "
            "for example {'critical': 10, 'normal': 5, 'low': 1}"
        )
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
    raise ConfigError(f"no lane {name!r}; {hint}")


def route_for(lane: str, settings: Settings, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``apply_async`` with the lane's queue in them.

    A destination that the options name already (``queue``, ``exchange``, ``routing_key``) wins:
    so a retry stays in the lane that its message came from, whatever the task's default is.

    Raises :class:`ConfigError`, before anything is sent, for an unknown lane and for a message
    priority outside 0…9: brokers clamp it, each in its own way.
    """
    found = lane_named(lanes_of(settings), lane)
    check_priority(options.get("priority"))
    if has_destination(options):
        return dict(options)
    headers = {**(options.get("headers") or {}), LANE_HEADER: found.name}
    return {**options, "queue": found.queue, "headers": headers}


def has_destination(options: Mapping[str, Any]) -> bool:
    """Whether a call says by itself where its message goes."""
    return any(options.get(name) for name in DESTINATION)


def check_priority(priority: object) -> None:
    """Raises :class:`ConfigError` for a message priority that no broker takes as it is."""
    if priority is None or (isinstance(priority, int) and priority in PRIORITIES):
        return
    raise ConfigError(
        f"priority {priority!r} is not one of 0…9; brokers would clamp it. "
        "For urgency across brokers use a lane: the number means opposite things on them"
    )


class LaneRouter:
    """A router for ``task_routes``: tasks with a ``lane`` attribute, and names by pattern.

    ``app.conf.task_routes = [LaneRouter(app, {"reports.*": "low"})]`` routes plain tasks; with
    ``@app.task(lane="low")`` a plain task says so itself. A destination given in ``apply_async``
    wins, and so does an earlier router in the list.

    Raises :class:`ConfigError`, before anything is sent, for an unknown lane and for a message
    priority outside 0…9.
    """

    def __init__(self, app: Any, patterns: Mapping[str, str] | None = None) -> None:
        self._app = app
        self._patterns = dict(patterns or {})

    def __call__(
        self,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        options: Any = None,
        task: Any = None,
        **_: Any,
    ) -> dict[str, str] | None:
        if has_destination(options or {}):
            return None
        if task is None:
            task = self._app.tasks.get(name)
        lane = getattr(task, "lane", None) or self._by_pattern(name)
        if not lane:
            return None
        check_priority((options or {}).get("priority"))
        from celery_idem.binding import binding_of

        return {"queue": lane_named(lanes_of(binding_of(self._app).settings), lane).queue}

    def _by_pattern(self, name: str) -> str | None:
        for pattern, lane in self._patterns.items():
            if fnmatch.fnmatchcase(name, pattern):
                return lane
        return None


def stamp_sent(headers: dict[str, Any] | None = None, **_: Any) -> None:
    """Receiver of ``before_task_publish``: notes when the message was sent, for ages and
    deadlines. A retry is a new sending."""
    if headers is not None:
        headers[SENT_HEADER] = round(time.time(), 3)


def sent_s(headers: Mapping[str, Any] | None) -> float | None:
    """When the message was sent, or ``None`` where the header is missing or no number."""
    value = (headers or {}).get(SENT_HEADER)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None
