"""The filters that most ``dlq`` commands share, and times as people write them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any

import click

from celery_idem.deadletters.base import Filter, LetterStore
from celery_idem.deadletters.letter import Reason, State

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class When(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """``30m``, ``2h``, ``3d`` ago, or an ISO date and time (local unless it says a zone)."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Milliseconds since 1970."""
        if isinstance(value, int):
            return value
        ago = re.fullmatch(r"(\d+)([smhdw])", str(value))
        if ago:
            return int((time.time() - int(ago[1]) * _UNITS_S[ago[2]]) * 1000)
        try:
            when = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        except ValueError:
            self.fail(f"{value!r} is neither 30m, 2h, 3d nor a date like 2025-11-30T08:00", param)
        return int(when.timestamp() * 1000)


def filtered(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the filter options; the command gets ``wanted``, a :class:`Filter`."""

    @click.argument("ids", nargs=-1, metavar="[ID]…")
    @click.option("--task", default="", help="Only of this task.")
    @click.option("--lane", "of_lane", default="", help="Only of this lane.")
    @click.option("--queue", "of_queue", default="", help="Only of this queue.")
    @click.option("--reason", type=click.Choice([it.value for it in Reason]), default=None,
                  help="Only with this reason.")  # fmt: skip
    @click.option("--state", type=click.Choice([it.value for it in State]), default=None,
                  help="Only of this state. new: nobody has touched it; edited: it has other "
                  "arguments; replaying: it is being sent; again: it died again after a replay; "
                  "not_replayable: it can't be sent.")  # fmt: skip
    @click.option("--group", default="", help="Only of this error group (see groups).")
    @click.option("--key", default="", help="Only of this key: task name, ':', its own key.")
    @click.option("--text", default="", help="Task, key, error type or message holds this text.")
    @click.option("--since", type=When(), default=0, help="Died since: 30m, 2h, 3d ago, or a date.")
    @click.option("--until", type=When(), default=0, help="Died before.")
    @wraps(command)
    def inner(
        *args: Any, ids: tuple[str, ...], task: str, of_lane: str, of_queue: str,
        reason: str | None, state: str | None, group: str, key: str, text: str, since: int,
        until: int, **options: Any,
    ) -> Any:  # fmt: skip
        if since and until and since >= until:
            raise click.UsageError("--since must be before --until: nothing died in between")
        wanted = Filter(
            ids=ids,
            task=task,
            lane=of_lane,
            queue=of_queue,
            reason=Reason(reason) if reason else None,
            state=State(state) if state else None,
            group=group,
            key=key,
            since_ms=since,
            until_ms=until,
            text=text,
        )
        return command(*args, wanted=wanted, **options)

    return inner


def expect_some(store: LetterStore, count: int, wanted: Filter) -> None:
    """Raises ``ClickException`` when ids were given and no letter ever had one of them; one that
    was sent again is gone as it should be."""
    if wanted.ids and not count and not any(store.trail(it) for it in wanted.ids):
        raise click.ClickException(f"no letter {', '.join(wanted.ids)}")


def app_of(ctx: click.Context) -> Any:
    """The app that was given with ``-A``, or the Django project's."""
    app = getattr(ctx.obj, "app", None)
    if app is None:
        raise click.ClickException("which app? celery -A proj dlq …")
    return app
