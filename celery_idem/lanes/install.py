"""What lanes add to an app: one consumer bootstep, a router, a header, what calls by name may say,
the control commands."""

from __future__ import annotations

from typing import Any

from celery import signals

from celery_idem.core.settings import Settings
from celery_idem.lanes import by_name
from celery_idem.lanes import control as control  # registers the remote-control commands
from celery_idem.lanes.consumer import LaneStep
from celery_idem.lanes.routing import LaneRouter, stamp_sent


def install_lanes(app: Any, settings: Settings | None = None) -> None:
    """Make this app's workers serve lanes, and its producers route to them. Safe to call again.

    Called by itself when the first idempotent task is bound; an app of plain tasks only calls it
    after its configuration. Without ``idem["lanes"]`` it changes nothing that a worker does.
    """
    app.steps["consumer"].add(LaneStep)
    by_name.install(app)
    signals.before_task_publish.connect(
        stamp_sent, weak=False, dispatch_uid="celery_idem.lanes.sent"
    )
    if app.configured:
        add_router(app)
    else:
        # not before the settings are there: looking at them now would freeze them
        app.on_after_configure.connect(
            lambda sender, **_: add_router(app), weak=False, dispatch_uid=f"idem-router-{id(app)}"
        )


def add_router(app: Any) -> None:
    """Let tasks with a ``lane`` attribute be routed to it, after the app's own routers."""
    given = app.conf.task_routes
    routes = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    if any(isinstance(route, LaneRouter) for route in routes):
        return
    # update: a router that was made by an earlier call is made anew
    app.conf.update(task_routes=[*routes, LaneRouter(app)])
