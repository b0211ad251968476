"""Ends of jobs that a pool does not report: what Celery's tracer raises itself.

Most often the result backend is away when the job ends, and is away still when that is to be
stored as an error. A prefork child tells its parent whatever happens. In threads, green threads
and solo the error ends in the pool: the request is never acked and never given back, and each such
job takes a place in the prefetch, until the worker is deaf.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import bootsteps

logger = logging.getLogger("celery_idem.worker")

#: Pools whose jobs run in this process.
_POOLS = {f"celery.concurrency.{name}" for name in ("thread", "gevent", "eventlet", "solo")}

_REPORTED = object()


class EveryEnd(bootsteps.StartStopStep):
    """Tells a request of such an end as prefork does, by its error callback."""

    name = "celery_idem.every_end"
    requires = ("celery.worker.components:Pool",)

    def start(self, worker: Any) -> None:
        """Before the consumer, whose tasks remember the pool's ``apply_async``."""
        _report_every_end(worker.pool)


def _report_every_end(pool: Any) -> None:
    if not any(kind.__module__ in _POOLS for kind in type(pool).__mro__):
        return
    apply_async = pool.apply_async

    def reporting(target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        callback, on_error = options.get("callback"), options.get("error_callback")
        if callback is not None and on_error is not None:
            target = _caught(target, on_error)
            options["callback"] = _unless_reported(callback)
        return apply_async(target, args or (), kwargs or {}, **options)

    pool.apply_async = reporting


def _caught(target: Callable[..., Any], on_error: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(target)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except Exception as error:
            logger.error("a job ended in an error outside of its body: %s", type(error).__name__)
            try:
                on_error(ExceptionInfo())
            except Exception as again:  # it acks first; what it would store then has no place yet
                logger.error("nor could that be stored: %s", type(again).__name__)
            return _REPORTED

    return run


def _unless_reported(callback: Callable[..., Any]) -> Callable[..., Any]:
    def done(result: Any) -> Any:
        return None if result is _REPORTED else callback(result)

    return done
