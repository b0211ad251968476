"""What a body may end with that is no ``Exception``, and who hears of it then.

Celery's tracer lets it pass. Outside of prefork the pool's callback fails on it (Celery 5.7
``base.py: apply_target``): the task is pending for ever, and its message is neither acked nor
given back while its worker lives. It need not be exotic: ``asyncio.CancelledError`` is one.
"""

from __future__ import annotations

from typing import Any

from billiard.process import current_process
from celery.exceptions import WorkerShutdown, WorkerTerminate

_MAIN = "MainProcess"
_GREEN_THREADS = ("gevent", "eventlet", "greenlet")


def ends_the_child(error: BaseException) -> bool:
    """Whether a pool's process ends with it: its parent sees that, and counts the crash."""
    return isinstance(error, (SystemExit, KeyboardInterrupt)) and _process_name() != _MAIN


def is_awaited(error: BaseException, limited: bool) -> bool:
    """Whether Celery itself has sent it into the body, and waits for it to come out.

    ``limited``: the job has a hard time limit.
    """
    if isinstance(error, (WorkerShutdown, WorkerTerminate)):
        return True
    kind = type(error)
    if not kind.__module__.startswith(_GREEN_THREADS):
        return False
    # gevent's Timeout may be Celery's hard time limit, or one that the body has set; eventlet's
    # is always the body's, since there Celery keeps no limits
    return kind.__name__ != "Timeout" or (limited and kind.__module__.startswith("gevent"))


def has_hard_limit(task: Any) -> bool:
    """Whether Celery ends this run of the task at some time."""
    given = (task.request.timelimit or (None,))[0]
    return bool(given or task.time_limit or task.app.conf.task_time_limit)


def _process_name() -> str:
    return str(current_process().name)
