"""When one task's letters flood in: the alarm, and the call to the workers to stop feeding it.

Whoever stores a letter looks at how many its task has sent within a minute. Above
``flood_per_minute`` it says so and asks all workers to pause the queue that the letter came from;
:mod:`celery_idem.deadletters.breaker` is the worker's side.
"""

from __future__ import annotations

import logging
import time
from typing import Any
from weakref import WeakKeyDictionary

from celery_idem import signals
from celery_idem.core.errors import IdemError
from celery_idem.deadletters.base import Filter, LetterStore
from celery_idem.deadletters.choose import LetterSettings
from celery_idem.deadletters.letter import Letter, Reason

logger = logging.getLogger("celery_idem.deadletters")

WINDOW_MS = 60_000
#: A process tells of the flood of one task at most so often, in seconds.
TOLD_AGAIN_S = 10.0
#: Remote-control command that pauses a queue.
PAUSE_COMMAND = "flood_pause"

#: What pausing a queue would not make fewer: a message that waits expires all the more.
_NO_FAULT = (Reason.EXPIRED, Reason.REVOKED)

_told: WeakKeyDictionary[Any, dict[str, float]] = WeakKeyDictionary()


def look(app: Any, store: LetterStore, letter: Letter, settings: LetterSettings) -> None:
    """Sound the alarm when this letter is one too many. Its message may be acked whatever comes
    of this: nothing here raises."""
    most = settings.flood_per_minute
    if most is None or letter.reason in _NO_FAULT:
        return
    since_ms = letter.last_died_ms - WINDOW_MS
    # what names no task is counted by its reason: a Filter without a task would count all
    reason = None if letter.task else letter.reason
    try:
        count = store.count(Filter(task=letter.task, reason=reason, since_ms=since_ms))
    except IdemError as error:
        logger.warning("letters could not be counted for the flood alarm: %s", error)
        return
    if count > most and _is_time_to_tell(app, kind_of(letter)):
        _tell(app, letter, count, settings)


def kind_of(letter: Letter) -> str:
    """What floods: a task, or messages without one."""
    return letter.task or letter.reason.value


def _is_time_to_tell(app: Any, kind: str) -> bool:
    told = _told.setdefault(app, {})
    now_s = time.monotonic()
    if now_s - told.get(kind, -TOLD_AGAIN_S) < TOLD_AGAIN_S:
        return False
    told[kind] = now_s
    return True


def _tell(app: Any, letter: Letter, count: int, settings: LetterSettings) -> None:
    kind = kind_of(letter)
    logger.error(
        "flood: %d letters of %s within a minute (flood_per_minute=%s)",
        count, kind, settings.flood_per_minute,
        extra={"key": letter.key, "task_id": letter.task_id},
    )  # fmt: skip
    signals.send(
        signals.flood, app, key=letter.key, task=letter.task, lane=letter.lane, count=count
    )
    if settings.flood_pause_s:
        arguments = {"kind": kind, "queue": letter.message.queue, "pause_s": settings.flood_pause_s}
        try:
            app.control.broadcast(PAUSE_COMMAND, arguments=arguments)
        except Exception as error:
            # The broker can't be reached: nothing is consumed, either.
            logger.warning("the workers could not be told of a flood: %s", error)
