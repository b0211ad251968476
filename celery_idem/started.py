"""The state STARTED (``track_started``): said when a body begins, and not before.

Celery stores it before it calls the task. A delivery that is not granted would say it of work that
somebody else is doing, or has done: over the outcome, where the result backend lets it, and for
ever where the delivery then has nothing more to say.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from celery import states

from celery_idem.results import ignores_result

logger = logging.getLogger("celery_idem.started")

_OURS = "_idem_says_started"


def take_over(task: Any) -> None:
    """In the worker, before it takes a message: from now on :func:`say` stores it."""
    if task.track_started:
        task.track_started = False
        setattr(task, _OURS, True)


def say(task: Any) -> None:
    """The body of the task's current request begins now."""
    request = task.request
    if not getattr(task, _OURS, False) or request.is_eager or ignores_result(task):
        return
    where = {"pid": os.getpid(), "hostname": request.hostname}
    try:
        task.backend.store_result(request.id, where, states.STARTED, request=request)
    except Exception as error:
        # The job itself is not in need of it.
        logger.warning("STARTED could not be stored: %s", error, extra={"task_id": request.id})
