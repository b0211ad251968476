"""Sending a message again later, as itself: never at once (a hot loop), never lost in between."""

from __future__ import annotations

import logging
import random
import time
from datetime import datetime, timezone
from typing import Any, NoReturn

from celery.exceptions import Ignore, ImproperlyConfigured, QueueNotFound, Reject
from kombu.exceptions import EncodeError
from kombu.serialization import registry  # type: ignore[attr-defined]

from celery_idem.confirming import confirming
from celery_idem.core.errors import ConfigError, KeyInvalid, RequeuedTooOften
from celery_idem.delivery import REQUEUES_HEADER, WAITS_HEADER, Delivery, is_broadcast

logger = logging.getLogger("celery_idem.redeliver")

#: Added to a holder's remaining lease, in seconds, so that the lease is over on return.
MARGIN_S = 0.05
#: First pause of a message that meets a holder again, in seconds; doubled up to the lease.
FIRST_PAUSE_S = 0.25
#: First and longest pause of a message whose body asked for a requeue, in seconds.
FIRST_REQUEUE_PAUSE_S = 1.0
LONGEST_REQUEUE_PAUSE_S = 60.0
#: Errors of publishing that are the call's own, and the same at the next try: its arguments can't
#: be written, its key or lane is none, its queue is not there and may not be made.
NOT_THE_BROKERS = (EncodeError, ConfigError, KeyInvalid, ImproperlyConfigured, QueueNotFound)


def come_back(task: Any, delivery: Delivery, remaining_s: float, lease_s: float) -> NoReturn:
    """Send a copy that comes when the holder's lease could be over; then ack this one.

    Uses up no retries. The pause grows up to a lease, so that a recovery is never later than one.
    """
    grown_s = min(lease_s, FIRST_PAUSE_S * 2.0 ** min(delivery.waits, 20))
    countdown_s = max(remaining_s + MARGIN_S, grown_s) * random.uniform(1.0, 1.05)
    _send_copy(task, countdown_s, {WAITS_HEADER: delivery.waits + 1})
    raise Ignore(f"in progress elsewhere; comes back in {countdown_s:.1f} s")


def requeue_later(task: Any, delivery: Delivery, reject: Any, most: int) -> NoReturn:
    """``Reject(requeue=True)`` of a body, with a growing delay instead of at once; a failure at
    the ``most``-th time."""
    requeues = delivery.requeues + 1
    if requeues >= most:
        raise RequeuedTooOften(
            f"the body asked for a requeue {requeues} times (max_requeues={most}): "
            f"{reject.reason!r}"
        )
    pause_s = min(LONGEST_REQUEUE_PAUSE_S, FIRST_REQUEUE_PAUSE_S * 2.0 ** (requeues - 1))
    try:
        _send_copy(task, pause_s, {REQUEUES_HEADER: requeues})
    except Reject:
        raise reject from None
    raise Ignore(f"requeued by its body; comes back in {pause_s:.1f} s")


def carried_over(request: Any, same_arguments: bool) -> dict[str, Any]:
    """Options for a message that is made from this request's: what its call asked for and Celery
    does not carry over.

    ``serializer``: arguments that JSON can't write came by another, and must go by it.
    ``argsrepr`` and ``kwargsrepr``: what logs and events may show of the arguments.
    """
    options: dict[str, Any] = {}
    serializer = registry.type_to_name.get(Delivery.handed_over(request).get("content_type"))
    if serializer:
        options["serializer"] = serializer
    for name in ("argsrepr", "kwargsrepr") if same_arguments else ():
        text = getattr(request, name, None)
        if isinstance(text, str):
            options[name] = text
    return options


def wait_before_it_goes_back() -> None:
    """A requeue is at once: where nothing can be sent instead, this wait is the only brake."""
    time.sleep(FIRST_REQUEUE_PAUSE_S)


def seconds_until(when: Any) -> float:
    """``Retry.when`` as seconds from now: a countdown, a time, or nothing."""
    if when is None:
        return 0.0
    if isinstance(when, datetime):
        now = datetime.now(when.tzinfo or timezone.utc)
        if when.tzinfo is None:
            now = now.replace(tzinfo=None)
        return max(0.0, (when - now).total_seconds())
    return max(0.0, float(when))


def _go_back_here(task: Any) -> NoReturn:
    """A copy of a broadcast would go to every worker, and each would send copies again. RabbitMQ
    has a queue for each worker, to which the message itself can go back; Redis has none."""
    with confirming(task.app) as producer:
        has_queues = producer is not None
    if not has_queues:
        logger.error("a broadcast that can't be run now is given up by this worker",
                     extra={"task_id": task.request.id})  # fmt: skip
        raise Ignore("a broadcast that can't be run now")
    wait_before_it_goes_back()
    raise Reject("a broadcast that can't be run now", requeue=True)


def _send_copy(task: Any, countdown_s: float, counts: dict[str, int]) -> None:
    """Publish this very message again: id, retries, headers, chain, chord and callbacks kept."""
    request = task.request
    if is_broadcast(task.app, request.delivery_info):
        _go_back_here(task)
    signature = task.signature_from_request(
        request, countdown=countdown_s, retries=request.retries or 0
    )
    kept = {
        k: v for k, v in (request.headers or {}).items() if k in (WAITS_HEADER, REQUEUES_HEADER)
    }
    signature.options["headers"] = {
        **(signature.options.get("headers") or {}),
        **kept,
        **counts,
    }
    try:
        with confirming(task.app) as producer:
            signature.apply_async(add_to_parent=False, producer=producer)
    except Exception as error:
        # The broker can't take the copy: this message must stay.
        logger.warning("a message could not be sent again (%s); it goes back", error)
        wait_before_it_goes_back()
        raise Reject(error, requeue=True) from error
