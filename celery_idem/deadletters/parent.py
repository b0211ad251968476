"""From a delivery that ended in the worker's main process to a letter, before it is acked."""

from __future__ import annotations

import contextlib
import logging
import traceback as tracebacks
from typing import Any

from celery.exceptions import Reject

from celery_idem import ending
from celery_idem.binding import binding_of
from celery_idem.core.errors import AlreadyProcessed, IdemError, InProgress
from celery_idem.core.record import Record, State
from celery_idem.deadletters import post
from celery_idem.deadletters.choose import letter_settings_of, quick_letters_of
from celery_idem.deadletters.letter import (
    Fault,
    Letter,
    Message,
    Reason,
    lasting,
    letter_id,
    named_fault,
    place_in,
    type_name,
)
from celery_idem.deadletters.publish import own_headers, send
from celery_idem.delivery import WAITS_HEADER
from celery_idem.options import most_retries

logger = logging.getLogger("celery_idem.deadletters")

#: First and longest pause of a message whose letter could not be stored, in seconds.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0

#: Times that a done job's message comes back because its result could not be reported, before it
#: is a letter: about a quarter of an hour.
MOST_REPORTS = 20

#: Attribute of an error whose letter the child has stored.
_KEPT = "_idem_kept"

_ANSWERS = (AlreadyProcessed, InProgress)


def install() -> None:
    """Keep what ends in the main process from now on."""
    ending.set_aside = set_aside


def set_aside(request: Any, why: str, info: Any) -> bool:
    """See :data:`celery_idem.ending.set_aside`."""
    app, settings = request.task.app, letter_settings_of(request.task.app)
    if (why == ending.EXPIRED and not settings.expired) or (
        why == ending.REVOKED and not settings.revoked
    ):
        return True
    error = ending.error_of(info) if info is not None else None
    if isinstance(error, _ANSWERS):
        return True
    try:
        message = message_of(request.message)
        if why == ending.FAILURE and _kept_by_the_child(app, request, error, message):
            return True
        record = _record_of(app, getattr(request, "_idem_lease", None), why)
        if _only_the_report_failed(why, record, message):
            named = type(error).__name__ if error is not None else why
            put_off(request, f"the work is done, and its result could not be reported ({named})")
            return False
        post.put(app, _letter(request, why, info, message, record), quick=True)
    except Exception as unable:
        # Whatever it is: a message that is not set aside is not acked.
        put_off(request, f"a letter could not be stored: {unable}")
        return False
    return True


def put_off(request: Any, why: str) -> None:
    """This delivery can't end yet: a copy of the message comes again later, or it goes back."""
    headers = own_headers(request.message.headers or {})
    waits = _waits_of(request.message.headers)
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(waits, 20))
    logger.error(
        "%s[%s]: %s; the message comes back in %.0f s",
        request.name,
        request.id,
        why,
        pause_s,
        extra={"task_id": request.id},
    )
    try:
        message = message_of(request.message)
        headers = {**headers, WAITS_HEADER: waits + 1}
        send(request.app, message, headers, delay_s=pause_s, quick=True)
    except Exception as error:
        logger.error("it could not be sent again either (%s); it goes back", error)
        request.reject(requeue=True)
    else:
        request.acknowledge()
    # Celery's own handler, which would, is not called: the job would count as active for ever
    from celery.worker.state import task_ready

    task_ready(request)


def _waits_of(headers: Any) -> int:
    waits = (headers or {}).get(WAITS_HEADER, 0)
    return waits if isinstance(waits, int) else 0


def _only_the_report_failed(why: str, record: Record | None, message: Message) -> bool:
    """Whether the key is done, and Celery could only not say so: a result backend that is down.
    Sent again, the message hands the recorded result on. A backend that refuses this very result
    would refuse it for ever, so that ends after some times."""
    ends = why in (ending.FAILURE, ending.TIME_LIMIT)
    done = record is not None and record.state is State.DONE
    return ends and done and _waits_of(message.headers) < MOST_REPORTS


def message_of(message: Any) -> Message:
    """A kombu message as it came."""
    info = message.delivery_info or {}
    body = message.body
    if body is None:
        body = b""
    routing_key = str(info.get("routing_key") or "")
    headers = message.headers if isinstance(message.headers, dict) else {"": message.headers}
    return Message(
        body=body.encode("utf-8", "surrogateescape") if isinstance(body, str) else bytes(body),
        content_type=str(message.content_type or ""),
        content_encoding=str(message.content_encoding or ""),
        headers=dict(headers),
        properties=lasting(message.properties or {}),
        exchange=str(info.get("exchange") or ""),
        routing_key=routing_key,
        queue=routing_key,
    )


def lane_of(app: Any, message: Message) -> str:
    """The lane that the message came through, if any."""
    named = message.headers.get("idem_lane")
    if isinstance(named, str):
        return named
    lanes = binding_of(app).settings.lanes
    return message.queue if message.queue in lanes else ""


def fault_of_info(info: Any) -> Fault:
    """The fault of an exception that came from a child, with its traceback as text."""
    error = ending.error_of(info)
    if isinstance(error, Reject):
        reason = error.args[0] if error.args else None
        return named_fault("celery.exceptions.Reject", str(reason or ""))
    frames: list[tracebacks.FrameSummary] = []
    frame = getattr(info, "tb", None)
    while frame is not None and len(frames) < 1000:
        code = frame.tb_frame.f_code
        frames.append(tracebacks.FrameSummary(code.co_filename, 0, code.co_name, line=""))
        frame = frame.tb_next
    return named_fault(type_name(error), str(error), str(info.traceback or ""), place_in(frames))


def mark_kept(error: BaseException) -> None:
    """In the child: this error has its letter. The mark travels with the error to the parent."""
    with contextlib.suppress(AttributeError, TypeError):
        setattr(error, _KEPT, True)


def _kept_by_the_child(app: Any, request: Any, error: Any, message: Message) -> bool:
    """The child stores a failure's letter itself, before its answer. What fails outside of the
    task's own code (its result can't be encoded, its arguments can't be read) it does not see; nor
    does a mark come through where the error could not be pickled."""
    if getattr(error, _KEPT, False):
        return True
    return quick_letters_of(app).get(letter_id(request.id, message)) is not None


def _letter(request: Any, why: str, info: Any, message: Message, record: Record | None) -> Letter:
    app, lease = request.task.app, getattr(request, "_idem_lease", None)
    return Letter(
        id=letter_id(request.id, message),
        reason=_reason(request, why, info),
        message=message,
        task=str(request.task.name),
        task_id=request.id,
        key=lease.key if lease is not None else "",
        lane=lane_of(app, message),
        fault=_fault(request, why, info),
        retries=int(request.request_dict.get("retries") or 0),
        crashes=record.crashes if record else 0,
        fence=record.fence if record else 0,
        worker=str(request.hostname or ""),
    )


def _reason(request: Any, why: str, info: Any) -> Reason:
    if why == ending.FAILURE and isinstance(ending.error_of(info), Reject):
        return Reason.REJECTED
    if why == ending.FAILURE and _no_retry_left(request):
        return Reason.RETRIES_EXHAUSTED
    return Reason(why)


def _no_retry_left(request: Any) -> bool:
    retries, most = request.request_dict.get("retries") or 0, most_retries(request.task)
    return most is not None and 0 < retries >= most


def _fault(request: Any, why: str, info: Any) -> Fault:
    if info is not None:
        return fault_of_info(info)
    limit = request.time_limits[0] if request.time_limits else None
    texts = {
        ending.TIME_LIMIT: f"killed at its hard time limit of {limit or request.task.time_limit} s",
        ending.EXPIRED: f"expired at {request.expires}",
        ending.REVOKED: "revoked",
    }
    return named_fault(why, texts[why], place=str(request.task.name))


def _record_of(app: Any, lease: Any, why: str) -> Record | None:
    """Raises the store's error where the record says whether the work was done all the same."""
    if lease is None:
        return None
    try:
        return binding_of(app).keeper.store.get(lease.key)
    except IdemError:
        if why in (ending.FAILURE, ending.TIME_LIMIT):
            raise
        return None
