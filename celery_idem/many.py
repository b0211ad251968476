"""``map``, ``starmap`` and ``chunks``, which can't keep the promise.

They make one message of Celery's own task, which calls the body as a function, item by item: no
key, no claim, and an ack before the first of them. A killed worker would lose the rest, and a
second sending would do all again.
"""

from __future__ import annotations

from typing import Any, NoReturn

from celery import current_task

from celery_idem.core.errors import ConfigError

_CELERYS = ("celery.map", "celery.starmap")


class Many:
    """Refuses them, and says what to use."""

    def map(self, it: Any) -> Any:
        """Raises :class:`ConfigError`: use a group."""
        _refuse(self, "map")

    def starmap(self, it: Any) -> Any:
        """Raises :class:`ConfigError`: use a group."""
        _refuse(self, "starmap")

    def chunks(self, it: Any, n: int) -> Any:
        """Raises :class:`ConfigError`: use a group."""
        _refuse(self, "chunks")


def refuse_inside_another(task: Any) -> None:
    """For those that are made by their signatures: raises :class:`ConfigError` in the worker."""
    outer = current_task
    if outer and outer.name in _CELERYS:
        _refuse(task, str(outer.name))


def _refuse(task: Any, what: str) -> NoReturn:
    raise ConfigError(
        f"{task.name}: {what} calls the body inside of Celery's own task, without a key and acked "
        "before it runs; send each by itself: group(task.s(item) for item in items)"
    )
