"""What Celery's worker in this process runs, and what waits in it; nothing where there is none."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection
from typing import Any
from weakref import WeakSet


def a_task_waits() -> bool:
    """Whether the pool has a task to go on with when one ends."""
    state = _state()
    return state is not None and len(state.reserved_requests) > len(state.active_requests)


def tags_that_run() -> set[str]:
    """Delivery tags of the tasks that run in this worker now."""
    state = _state()
    if state is None:
        return set()
    active = _all_of(state.active_requests)
    return {request.message.delivery_tag for request in active if _still_runs(request)}


def yet_to_run() -> Collection[Any]:
    """Requests that the pool was given, has not begun, and will run whatever becomes of the
    connection: those of threads and green threads. What waits for prefork's children is dropped."""
    state = _state()
    if state is None:
        return ()
    active = set(_all_of(state.active_requests))
    waiting = (request for request in _all_of(state.reserved_requests) if request not in active)
    return WeakSet(request for request in waiting if _will_run(request))


def _all_of(requests: Any) -> tuple[Any, ...]:
    """Of a weak set that other threads add to meanwhile."""
    while True:
        # it grew in these microseconds: looked at again
        with contextlib.suppress(RuntimeError):
            return tuple(requests)


def _state() -> Any:
    return sys.modules.get("celery.worker.state")


def _still_runs(request: Any) -> bool:
    """Whether the pool still works on it."""
    reference = getattr(request, "_apply_result", None)
    if reference is None:
        return True  # solo: it runs in the very thread of the consumer
    result = reference()
    if result is None:
        # the threads pool itself keeps none; Celery counts the request for as long as it runs
        return bool(request.worker_pid == os.getpid())
    if (future := getattr(result, "f", None)) is not None:  # threads
        return not future.done()
    if (jobs := getattr(result, "_cache", None)) is not None:  # prefork
        # Celery before 5.6.3 forgets its children's jobs when it connects anew: no ack will come
        return result._job in jobs
    return not _is_over(result)


def _will_run(request: Any) -> bool:
    reference = getattr(request, "_apply_result", None)
    if reference is None:
        return False  # the pool does not have it
    result = reference()
    if result is None or hasattr(result, "f"):  # threads
        return True
    return not hasattr(result, "_cache") and not _is_over(result)


def _is_over(greenlet: Any) -> bool:
    if callable(ready := getattr(greenlet, "ready", None)):  # gevent
        return bool(ready())
    return bool(getattr(greenlet, "dead", False))  # eventlet
