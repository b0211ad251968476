"""Remote-control commands for lanes. They hold for the worker's life: a restart reads the
settings again, and a worker that starts later does not know of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.worker.control import control_command, inspect_command

from celery_idem.core.errors import ConfigError
from celery_idem.core.order import check_weight

if TYPE_CHECKING:
    from celery_idem.lanes.consumer import WorkerLanes

UNTIL_RESTART = "until this worker restarts; to keep it, change idem['lanes']"


def _change(state: Any, lane: str, change: Callable[[WorkerLanes], str]) -> dict[str, str]:
    """Make it, act on it at once, and say what is so now; or say what was wrong."""
    lanes: WorkerLanes | None = getattr(state.consumer, "idem_lanes", None)
    if lanes is None:
        return {"error": "this worker serves no lanes: idem['lanes'] is not set"}
    if not lane:
        known = ", ".join(it.name for it in lanes.line.lanes)
        return {"error": f"which lane? this worker serves {known}"}
    try:
        said = change(lanes)
    except ConfigError as error:
        return {"error": str(error)}
    lanes.changed()
    return {"ok": said}


def number_or_text(given: str) -> float | str:
    """What is typed: the worker says what is wrong with a text, Celery's own would be a trace."""
    with contextlib.suppress(ValueError):
        return float(given)
    return given


@control_command(
    args=[("lane", str), ("weight", number_or_text)],
    signature="<lane> <weight>",
)
def lane_weight(state: Any, lane: str = "", weight: Any = None) -> dict[str, str]:
    """Give a lane another weight, until the worker restarts."""

    def change(lanes: WorkerLanes) -> str:
        if weight is None:
            raise ConfigError(f"which weight for lane {lane!r}? lane_weight <lane> <weight>")
        checked = check_weight(lane, weight)
        lanes.line.reweigh(lane, checked)
        return f"lane {lane!r} has weight {checked:g} {UNTIL_RESTART}"

    return _change(state, lane, change)


@control_command(args=[("lane", str)], signature="<lane>")
def lane_pause(state: Any, lane: str = "") -> dict[str, str]:
    """Start nothing more of a lane, until it is resumed or the worker restarts."""

    def change(lanes: WorkerLanes) -> str:
        lanes.line.pause(lane)
        return f"lane {lane!r} is paused {UNTIL_RESTART}"

    return _change(state, lane, change)


@control_command(args=[("lane", str)], signature="<lane>")
def lane_resume(state: Any, lane: str = "") -> dict[str, str]:
    """Serve a paused lane again. It joins at the current round, and does not catch up."""

    def change(lanes: WorkerLanes) -> str:
        lanes.line.resume(lane)
        return f"lane {lane!r} is served"

    return _change(state, lane, change)


@inspect_command()
def lanes(state: Any) -> dict[str, Any]:
    """Weights, what runs, waits and was served in the last minute, lane by lane."""
    known = getattr(state.consumer, "idem_lanes", None)
    return known.report() if known is not None else {}
