"""``lane=`` and ``idem_key=`` in every call that ends in ``app.send_task``: by name, or of a plain
task. Celery takes any option there, and sends one that it does not know along as nothing."""

from __future__ import annotations

import functools
from typing import Any

from celery_idem.binding import binding_of
from celery_idem.core.errors import ConfigError
from celery_idem.core.key import check_key
from celery_idem.delivery import KEY_HEADER, LANE_HEADER
from celery_idem.lanes.routing import DESTINATION, has_destination, lanes_of, route_for
from celery_idem.task import IdempotentTask

_MARK = "_idem_by_name"


def install(app: Any) -> None:
    """Let this app's ``send_task`` understand both. Safe to call again."""
    given = vars(app).get("send_task")  # somebody else's, for this app alone
    if getattr(given, _MARK, False):
        return

    @functools.wraps(app.send_task)
    def send_task(name: str, *args: Any, **options: Any) -> Any:
        # looked up at each call: others put theirs around the class's, and may come later
        send = given or functools.partial(type(app).send_task, app)
        return send(name, *args, **understood(app, name, options))

    setattr(send_task, _MARK, True)
    app.send_task = send_task


def understood(app: Any, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with the lane's queue and the key's header in them.

    Raises :class:`ConfigError` for an unknown lane and for a key of a task that has none,
    :class:`KeyInvalid` for a key that can be none.
    """
    stamps = options.get("stamped_headers") or ()
    key, lane = (
        None if option in stamps else options.pop(option, None) for option in ("idem_key", "lane")
    )
    if key is not None:
        _refuse_a_plain_task(app, name, options)
        check_key(key, f"{name}: idem_key")
        options["headers"] = {**(options.get("headers") or {}), KEY_HEADER: key}
    task = options.get("task_type") or app._tasks.get(name)
    if lane is not None:
        options = route_for(lane, binding_of(app).settings, without_the_tasks_own(task, options))
    return kept_in_lane(app, task, options)


def without_the_tasks_own(task: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options without a destination that is the task's attribute: Celery has put it there, and
    what a call says wins over it."""
    own = {it for it in DESTINATION if options.get(it) and options[it] == getattr(task, it, None)}
    return {option: value for option, value in options.items() if option not in own}


def kept_in_lane(app: Any, task: Any, options: dict[str, Any]) -> dict[str, Any]:
    """A message of a lane goes to the lane's queue by name, whatever kind of exchange that has.

    Else the exchange and the routing key of a route would be joined with it, and count for more.
    """
    name = (options.get("headers") or {}).get(LANE_HEADER)
    queue = options.get("queue")
    if name is None or queue is None:
        return options
    lanes = lanes_of(binding_of(app).settings)
    if (name, getattr(queue, "name", queue)) not in {(lane.name, lane.queue) for lane in lanes}:
        return options
    rest = {**options, "queue": None}
    if has_destination(without_the_tasks_own(task, rest)):
        return options
    return {**options, "exchange": "", "routing_key": getattr(queue, "name", queue)}


def _refuse_a_plain_task(app: Any, name: str, options: dict[str, Any]) -> None:
    task = options.get("task_type") or app._tasks.get(name)  # not app.tasks: it need not be ready
    if task is not None and not isinstance(task, IdempotentTask):
        raise ConfigError(
            f"{name} is no IdempotentTask, and idem_key would protect nothing; "
            "give it base=IdempotentTask"
        )
