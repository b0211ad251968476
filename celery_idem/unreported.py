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
from dataclasses import dataclass
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import bootsteps

from celery_idem.aborts import is_awaited
from celery_idem.core.errors import BodyAborted
from celery_idem.ending import as_any_failure

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
            end = _End(_request_of(callback), callback, on_error, limited)
            target, options["callback"] = end.caught(target), end.reported
        return apply_async(target, args or (), kwargs or {}, **options)

    pool.apply_async = reporting


def _request_of(callback: Any) -> Any:
    owner = getattr(callback, "__self__", None)
    return getattr(owner, "request", owner)  # what watches for the lanes has it


@dataclass(frozen=True, slots=True)
class _End:
    """How one job's end is reported, whatever it is."""

    request: Any
    callback: Callable[..., Any]
    on_error: Callable[..., Any]
    limited: bool

    def caught(self, target: Callable[..., Any]) -> Callable[..., Any]:
        """The pool's target, which never raises what the pool would keep to itself."""

        @functools.wraps(target)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return target(*args, **kwargs)
            except Exception as error:
                self._report(error, "an error outside of its body")
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) or is_awaited(error, self.limited):
                    raise
                self._report(error, "what is no Exception")
            return _REPORTED

        return run

    def reported(self, result: Any) -> Any:
        """The pool's callback."""
        if result is _REPORTED:
            return None
        try:
            return self.callback(result)
        except MemoryError as error:
            failed, info, *others = result
            if failed:  # the body's own, stored by now: the handler raises it to end a child
                return self.callback((failed, as_any_failure(info, error), *others))
            if not self._requeued():
                raise
        except Exception:
            if not self._requeued():
                raise
        return None

    def _requeued(self) -> bool:
        """Put the message back, whose handler failed before it acked or rejected."""
        if getattr(self.request, "acknowledged", True):
            return False
        self.request.reject(requeue=True)
        return True

    def _report(self, error: BaseException, what: str) -> None:
        logger.error("a job ended in %s: %s", what, type(error).__name__)
        try:
            try:
                if isinstance(error, Exception) and not isinstance(error, MemoryError):
                    raise error
                # Celery's handler raises a MemoryError anew, and is not made for the others
                raise BodyAborted(f"the job ended with {type(error).__name__}") from error
            except Exception:
                self.on_error(ExceptionInfo())
        except Exception as again:
            logger.error("nor could that be stored: %s", type(again).__name__)
            self._requeued()
