"""Ends of jobs that a pool does not report.

Most often it is an error of Celery's tracer itself: the result backend is away when the job ends,
and is away still when that is to be stored as an error. Or the body ends in what is no
``Exception`` (``sys.exit()``, ``asyncio.CancelledError``). A prefork child tells its parent
whatever happens. In threads, green threads and solo that ends in the pool: the request is never
acked and never given back, and each such job takes a place in the prefetch, until the worker is
deaf.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import bootsteps
from celery.exceptions import WorkerLostError, WorkerShutdown, WorkerTerminate

logger = logging.getLogger("celery_idem.worker")

#: Pools whose jobs run in this process.
_POOLS = {f"celery.concurrency.{name}" for name in ("thread", "gevent", "eventlet", "solo")}

_REPORTED = object()


class EveryEnd(bootsteps.Step):
    """Tells a request of such an end as prefork does, by its error callback."""

    name = "celery_idem.every_end"
    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> None:
        """Before the consumer is made: its lanes watch the pool, and find their requests by the
        callbacks that Celery gave; its tasks remember the pool's ``apply_async``."""
        _report_every_end(worker.pool)


def _report_every_end(pool: Any) -> None:
    if not any(kind.__module__ in _POOLS for kind in type(pool).__mro__):
        return
    apply_async = pool.apply_async

    def reporting(target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        callback, on_error = options.get("callback"), options.get("error_callback")
        if callback is not None and on_error is not None:
            limited = bool(options.get("timeout") or getattr(pool, "timeout", None))
            target = _caught(target, on_error, limited)
            options["callback"] = _unless_reported(callback)
        return apply_async(target, args or (), kwargs or {}, **options)

    pool.apply_async = reporting


def _caught(
    target: Callable[..., Any], on_error: Callable[..., Any], limited: bool
) -> Callable[..., Any]:
    @functools.wraps(target)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except Exception as error:
            logger.error("a job ended in an error outside of its body: %s", type(error).__name__)
            _report(on_error)
        except BaseException as error:
            if _is_the_pools(error, limited):
                raise
            logger.error("a job ended in what is no Exception: %s", type(error).__name__)
            try:
                raise WorkerLostError(type(error).__name__) from error
            except WorkerLostError:  # what Celery's pools would have it be
                _report(on_error)
        return _REPORTED

    return run


def _report(on_error: Callable[..., Any]) -> None:
    try:
        on_error(ExceptionInfo())
    except Exception as again:
        logger.error("nor could that be stored: %s", type(again).__name__)


def _is_the_pools(error: BaseException, limited: bool) -> bool:
    """Whether it is for those who run the job: a worker's end, a greenlet's, its time limit."""
    if isinstance(error, (WorkerShutdown, WorkerTerminate, KeyboardInterrupt)):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return "GreenletExit" in names or (limited and "Timeout" in names)


def _unless_reported(callback: Callable[..., Any]) -> Callable[..., Any]:
    def done(result: Any) -> Any:
        return None if result is _REPORTED else callback(result)

    return done
