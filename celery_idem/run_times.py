"""How long bodies ran in this process, until a call that the store gets anyway takes it along.

A histogram per task and lane: ``celery -A proj idem tune`` reads them. Nothing is sent for it: the
counts travel with the next call of the store (a claim, a completion, a renewal), every few seconds
at most. What a process had not handed over when it was killed is lost; nothing rests on it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from celery_idem.core.histogram import RunCounts, bucket_of

#: Counts are handed over at most this often, in seconds; the first at once.
EVERY_S = 2.0
#: Different (task, lane, bucket) that wait at once; further ones are dropped.
MAX_WAITING = 10_000


class RunTimes:
    """One for an app in a process; safe for threads and forks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._waiting: dict[tuple[str, str, int], int] = {}
        self._due_at = 0.0

    def note(self, task: str, lane: str, seconds: float) -> None:
        """A body of the task has run for so long."""
        run = (task, lane, bucket_of(seconds))
        with self._lock:
            self._forget_if_forked()
            if run in self._waiting or len(self._waiting) < MAX_WAITING:
                self._waiting[run] = self._waiting.get(run, 0) + 1

    def due(self) -> RunCounts:
        """What is to be handed over now: empty, unless it is time. It is forgotten here."""
        if not self._waiting or self._clock() < self._due_at:
            return {}
        with self._lock:
            self._forget_if_forked()
            taken, self._waiting = self._waiting, {}
            self._due_at = self._clock() + EVERY_S
        return taken

    def _forget_if_forked(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._waiting = {}
            self._due_at = 0.0


class PlainTasks:
    """Notes the run times of tasks that are not idempotent, from Celery's own signals."""

    def __init__(self, times_of: Callable[[Any], RunTimes | None]) -> None:
        self._times_of = times_of
        self._started: dict[str, float] = {}

    def on_prerun(self, task_id: str = "", **_: Any) -> None:
        """A body begins."""
        if len(self._started) < MAX_WAITING:
            self._started[task_id] = time.monotonic()

    def on_postrun(self, task_id: str = "", task: Any = None, **_: Any) -> None:
        """It is over, whatever came of it."""
        started = self._started.pop(task_id, None)
        times = self._times_of(task)
        if started is not None and times is not None:
            times.note(task.name, queue_of(task.request), time.monotonic() - started)


def queue_of(request: Any) -> str:
    """Where the delivery came from: its queue, as far as the message tells."""
    info = getattr(request, "delivery_info", None) or {}
    return str(info.get("routing_key") or "")
