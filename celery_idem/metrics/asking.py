"""What the worker does not know by itself: how long its queues are, how many letters there are.

Asked for in one thread of its own, so that a server that does not answer holds nobody up: not the
worker, and not the scrape, which then says that the server is not up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letter_settings_of, quick_letters_of
from celery_idem.lanes.status import QueueState, queue_state

logger = logging.getLogger("celery_idem.metrics")

#: Seconds that a scrape waits for an answer.
PATIENCE_S = 5.0

T = TypeVar("T")


class Asking:
    """Of one worker. Remembers nothing but its connection."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._thread = ThreadPoolExecutor(1, "idem-metrics")
        self._pending: dict[str, Future[Any]] = {}
        self._connection: Any = None

    def queues(self, names: Mapping[str, str]) -> dict[str, QueueState] | None:
        """Lane → state of its queue; ``None`` when the broker does not answer."""
        return self._answer("broker", lambda: self._queues(names))

    def letters(self) -> int | None:
        """How many there are; ``None`` when the store does not answer, or there is none."""
        if letter_settings_of(self._app).route != "store":
            return None
        return self._answer("letters", lambda: quick_letters_of(self._app).count(Filter()))

    def close(self) -> None:
        """The worker ends; what is being asked is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _answer(self, what: str, ask: Callable[[], T]) -> T | None:
        """The question's answer, or ``None``: also while the one before has not been answered."""
        before = self._pending.get(what)
        if before is not None and not before.done():
            return None
        pending = self._pending[what] = self._thread.submit(ask)
        try:
            answer: T = pending.result(PATIENCE_S)
            return answer
        except Exception as error:  # whatever it is, the other numbers are told
            logger.info("no answer for the metrics: %s: %s", what, error or type(error).__name__)
            return None

    def _queues(self, names: Mapping[str, str]) -> dict[str, QueueState]:
        if self._connection is None:
            self._connection = self._app.connection_for_read()
        try:
            return {lane: _state(self._connection, queue) for lane, queue in names.items()}
        except Exception:
            connection, self._connection = self._connection, None
            connection.release()
            raise


def _state(connection: Any, queue: str) -> QueueState:
    channel = connection.default_channel
    if hasattr(channel, "state_of"):  # no channel of its own for each question
        told: QueueState = channel.state_of(queue)
        return told
    return queue_state(connection, queue)
