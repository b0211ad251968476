"""How a delivery ends where only the worker's main process sees it: time limits, lost processes,
expiry, and failures outside of the task's own code. Whoever sets messages aside is asked first."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, cast

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, InvalidTaskError, Reject, Retry
from celery.utils.imports import symbol_by_name
from celery.worker.request import Request

from celery_idem.core.errors import ConfigError

logger = logging.getLogger("celery_idem.ending")

# Why a delivery ends; the words of ``celery_idem.deadletters.letter.Reason``.
FAILURE = "failure"
TIME_LIMIT = "time_limit"
WORKER_LOST = "worker_lost"
EXPIRED = "expired"
REVOKED = "revoked"

#: A body's parts, and of what types Celery can use them.
_BODY: dict[str, tuple[type, ...]] = {
    "args": (list, tuple),
    "kwargs": (dict,),
    "embed": (dict, type(None)),
}


def _no_dead_letters(request: Any, why: str, info: Any) -> bool:
    """Until dead letters are installed, what ends here is acked as Celery does."""
    return True


#: Called with the request, why it ends, and billiard's exception info (or ``None``), before the
#: message is acked. Returns ``False`` when it put the message off because no letter could be
#: stored: then nothing else happens. ``celery_idem.deadletters.parent.install`` puts the real one
#: here: its room is below this one.
set_aside: Callable[[Any, str, Any], bool] = _no_dead_letters


def acks_on_timeout(task: Any) -> bool:
    """Whether a task killed at its hard time limit is acked: Celery 5.7 has an option of its own
    for it, before that it shares one with failures."""
    own = getattr(task, "acks_on_timeout", None)
    return bool(task.acks_on_failure_or_timeout if own is None else own)


def error_of(exc_info: Any) -> Any:
    """The exception itself; billiard wraps it with its traceback."""
    error = exc_info.exception
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


class _OutOfMemory(Exception):
    """Stands for the ``MemoryError`` of a task that has reported it, and so lives."""


def as_any_failure(exc_info: Any, error: MemoryError) -> Any:
    """The same end, which Celery's handler takes for an ordinary one.

    For a task's MemoryError it ends the worker's main process, before the message is acked
    (``request.py: on_failure``): it would end the next worker as well, and so on, uncounted.
    """
    failed = copy.copy(exc_info)
    failed.exception = _OutOfMemory(*error.args)
    return failed


def joined(given: Any, ours: type[Request], task_name: str) -> type[Request]:
    """The request class that a task names (or its path), with what ours does behind it. Without
    ours no letter would be kept, and no lease.

    Raises :class:`ConfigError` where the two can't be one.
    """
    own: Any = symbol_by_name(given)
    try:
        if issubclass(own, ours):
            return cast("type[Request]", own)
        if issubclass(ours, own):
            return ours
        return type(own.__name__, (own, ours), {"__module__": own.__module__})
    except TypeError as error:
        raise ConfigError(
            f"{task_name}: Request={given!r} can't be joined with {ours.__module__}."
            f"{ours.__name__} ({error}); make that its base class"
        ) from error


class EndingRequest(Request):
    """Celery's request, which sets its message aside before it is acked for good.

    Raises ``InvalidTaskError``, which sets it aside as well, for a body that can be read and is
    none of a task: Celery finds that out when the body is to run, outside of what it reports.
    """

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        payload: Any = self._payload  # type: ignore[attr-defined]
        for part, value, allowed in zip(_BODY, payload, _BODY.values(), strict=True):
            if not isinstance(value, allowed):
                raise InvalidTaskError(f"the body's {part} can't be of type {type(value).__name__}")

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        error = error_of(exc_info)
        if isinstance(error, TimeLimitExceeded):
            # billiard calls on_timeout next, which marks the failure, too: once is enough.
            return None
        why = self._why_final(error)
        if why and not set_aside(self, why, exc_info):
            return None
        if isinstance(error, MemoryError):
            exc_info = as_any_failure(exc_info, error)
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if soft:
            super().on_timeout(soft, timeout)
            return
        if self.comes_back_after_timeout():
            logger.error("hard time limit (%s s); the message comes back", timeout,
                         extra={"task_id": self.id})  # fmt: skip
            self.reject(requeue=True)
            return
        if not set_aside(self, TIME_LIMIT, None):
            return
        # Set aside, so never requeued: Celery would where the task has acks_on_timeout=False.
        self.acknowledge()
        super().on_timeout(soft, timeout)

    def comes_back_after_timeout(self) -> bool:
        """Whether a message whose task hit its hard time limit is tried again."""
        task: Any = self.task
        return bool(task.acks_late) and not acks_on_timeout(task)

    def maybe_expire(self) -> bool:  # type: ignore[override,unused-ignore]
        """Whether it is too late. Celery also notes the id as revoked, by which this worker would
        refuse a replay of the message."""
        expires: Any = self.expires
        if not expires:
            return False
        return bool(datetime.now(timezone.utc if expires.tzinfo else None) > expires)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if not terminated and not set_aside(self, EXPIRED if expired else REVOKED, None):
            return
        super()._announce_revoked(  # type: ignore[misc]
            reason, terminated, signum, expired
        )

    def _why_final(self, error: Any) -> str:
        """Why this is the end of the message; empty where it is not."""
        if isinstance(error, (Retry, Terminated)):
            return ""
        if isinstance(error, Reject):
            return "" if error.requeue else FAILURE  # type: ignore[attr-defined]
        if isinstance(error, Ignore):
            return ""
        if isinstance(error, (WorkerLostError, SystemExit, KeyboardInterrupt)):
            return "" if self._lost_comes_back() else WORKER_LOST
        return FAILURE

    def _lost_comes_back(self) -> bool:
        """Whether Celery requeues, retries or ignores the loss of this task's process."""
        task: Any = self.task
        if getattr(self, "_already_cancelled", False) or getattr(self, "_already_revoked", False):
            return True
        stored = getattr(self, "_success_was_stored", None)
        if stored is not None and stored():
            return True
        retries = int(self.request_dict.get("retries") or 0)
        if getattr(task, "retry_on_worker_lost", False):
            return not (task.max_retries is not None and retries >= task.max_retries)
        return bool(task.acks_late and task.reject_on_worker_lost)
