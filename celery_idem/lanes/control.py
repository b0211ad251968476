"""Remote-control commands for lanes. They hold for the worker's life: a restart reads the
settings again, and a worker that starts later does not know of them."""

from __future__ import annotations

from typing import Any

from celery.worker.control import control_command, inspect_command

from celery_idem.core.errors import ConfigError

UNTIL_RESTART = "until this worker restarts; to keep it, change idem['lanes']"


@control_command(
    args=[("lane", str), ("weight", float)],
    signature="<lane> <weight>",
)
def lane_weight(state: Any, lane: str, weight: float) -> dict[str, str]:
    """Give a lane another weight, until the worker restarts."""
    lanes = state.consumer.idem_lanes
    if lanes is None:
        return {"error": "this worker serves no lanes: idem['lanes'] is not set"}
    try:
        lanes.line.reweigh(lane, float(weight))
    except (ConfigError, ValueError) as error:
        return {"error": str(error)}
    lanes.changed()
    return {"ok": f"lane {lane!r} has weight {float(weight):g} {UNTIL_RESTART}"}


@control_command(args=[("lane", str)], signature="<lane>")
def lane_pause(state: Any, lane: str) -> dict[str, str]:
    """Start nothing more of a lane, until it is resumed or the worker restarts."""
    lanes = state.consumer.idem_lanes
    if lanes is None:
        return {"error": "this worker serves no lanes: idem['lanes'] is not set"}
    try:
        lanes.line.pause(lane)
    except ConfigError as error:
        return {"error": str(error)}
    lanes.changed()
    return {"ok": f"lane {lane!r} is paused {UNTIL_RESTART}"}


@control_command(args=[("lane", str)], signature="<lane>")
def lane_resume(state: Any, lane: str) -> dict[str, str]:
    """Serve a paused lane again. It joins at the current round, and does not catch up."""
    lanes = state.consumer.idem_lanes
    if lanes is None:
        return {"error": "this worker serves no lanes: idem['lanes'] is not set"}
    lanes.line.resume(lane)
    lanes.changed()
    return {"ok": f"lane {lane!r} is served"}


@inspect_command()
def lanes(state: Any) -> dict[str, Any]:
    """Weights, what runs, waits and was served in the last minute, lane by lane."""
    known = getattr(state.consumer, "idem_lanes", None)
    return known.report() if known is not None else {}
