"""From a task that failed for good to a letter, before the message is acked (DESIGN §6.3)."""

from __future__ import annotations

from typing import Any

from celery.exceptions import MaxRetriesExceededError, Reject
from kombu.exceptions import EncodeError

from celery_idem import run
from celery_idem.core.errors import AlreadyProcessed, BodyAborted, InProgress, KeyReused, Poisoned
from celery_idem.deadletters import parent, post
from celery_idem.deadletters.letter import (
    Fault,
    Letter,
    Message,
    Reason,
    fault_of,
    lasting,
    letter_id,
    named_fault,
)
from celery_idem.delivery import Delivery
from celery_idem.options import most_retries

#: Errors that are an answer to the caller, not the end of a piece of work.
ANSWERS = (AlreadyProcessed, InProgress)


def install() -> None:
    """Keep what fails for good from now on, in this process."""
    run.set_aside = keep_failure
    parent.install()


def keep_failure(task: Any, error: BaseException) -> None:
    """Store the letter of the task's current request. Raises ``StoreUnavailable``: then the
    message must not be acked."""
    request = task.request
    handed = Delivery.handed_over(request)
    if request.is_eager or "body" not in handed or isinstance(error, ANSWERS):
        return  # nothing is queued: the caller has the error in hand
    delivery: Delivery | None = getattr(request, run.DELIVERY, None)
    holding = getattr(request, run.HOLDING, None)
    message = message_of(handed, request.delivery_info or {})
    letter = Letter(
        id=letter_id(request.id, message, shares_id=_shares_its_id(request, error)),
        reason=reason_of(task, request, error),
        message=message,
        task=task.name,
        task_id=request.id,
        key=delivery.key if delivery else "",
        lane=parent.lane_of(task.app, message),
        fault=_fault(error),
        retries=request.retries or 0,
        crashes=holding.crashes if holding else getattr(error, "crashes", 0),
        fence=holding.fence if holding else 0,
        worker=request.hostname or "",
    )
    post.put(task.app, letter)
    parent.mark_kept(error)


def reason_of(task: Any, request: Any, error: BaseException) -> Reason:
    """Why the message is dead."""
    if isinstance(error, Poisoned):
        return Reason.POISON
    if isinstance(error, KeyReused):
        return Reason.KEY_CONFLICT
    if isinstance(error, Reject):
        return Reason.REJECTED
    if type(error).__name__ == "StepUncertain":
        return Reason.UNCERTAIN
    if isinstance(error, MaxRetriesExceededError):
        return Reason.RETRIES_EXHAUSTED
    most = most_retries(task)
    asked = (request.retries or 0) > 0 and most is not None and request.retries >= most
    return Reason.RETRIES_EXHAUSTED if asked else Reason.FAILURE


def _shares_its_id(request: Any, error: BaseException) -> bool:
    """Whether another message with this task id and other arguments was there before: its letter,
    if it dies, is not to be written over, nor this one by it (C10)."""
    return isinstance(error, KeyReused) and error.used_by == request.id


def message_of(handed: Any, delivery_info: Any) -> Message:
    """The message as the worker's parent handed it over."""
    body = handed["body"]
    routing_key = str(delivery_info.get("routing_key") or "")
    exchange = str(delivery_info.get("exchange") or "")
    return Message(
        body=body.encode("utf-8", "surrogateescape") if isinstance(body, str) else bytes(body),
        content_type=str(handed.get("content_type") or ""),
        content_encoding=str(handed.get("content_encoding") or ""),
        headers=dict(handed.get("headers") or {}),
        properties=lasting(handed.get("properties") or {}),
        exchange=exchange,
        routing_key=routing_key,
        queue=routing_key,
    )


def _fault(error: BaseException) -> Fault:
    if isinstance(error, Reject):
        reason = error.args[0] if error.args else None
        if isinstance(reason, BaseException):
            return fault_of(reason)
        return named_fault("celery.exceptions.Reject", str(reason or ""))
    if isinstance(error, (EncodeError, BodyAborted)) and error.__cause__ is not None:
        return fault_of(error.__cause__)
    return fault_of(error)
