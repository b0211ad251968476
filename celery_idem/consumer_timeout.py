"""RabbitMQ closes the channel of a worker that holds a message too long; the worker lives on (C06).

Celery takes that close for an error that can't be mended: the worker takes nothing more, exits
when its runs have ended, and the next worker runs the same job again, with the same end (5.5 to
5.7, unless ``broker_channel_error_retry`` is set, which also goes on after channel errors that will
be back at once). Here it is what it is, a lost connection: the run goes on under its lease, and its
message, which the broker delivers again, waits for the outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import bootsteps

logger = logging.getLogger("celery_idem.consumer_timeout")

#: AMQP's code of what the broker calls PRECONDITION_FAILED.
_PRECONDITION_FAILED = 406


class HeldTooLong(ConnectionError):
    """The channel is closed, and with it the connection: Celery makes new ones."""


class ConsumerTimeoutStep(bootsteps.StartStopStep):
    """Puts itself around the consumer's loop, where the broker's close is read."""

    name = "celery_idem.consumer_timeout"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._around: Callable[..., Any] | None = None

    def start(self, consumer: Any) -> None:
        """At every start of the consumer; the loop stays the same."""
        if consumer.loop is not self._around:
            consumer.loop = self._around = surviving(consumer.loop)


def surviving(loop: Callable[..., Any]) -> Callable[..., Any]:
    """The loop, from which the close of a slow consumer comes as a lost connection."""

    def around(*args: Any, **options: Any) -> Any:
        try:
            return loop(*args, **options)
        except Exception as error:
            if not was_held_too_long(error):
                raise
            logger.error(
                "RabbitMQ has closed the channel, since a message was not acked within its "
                "consumer_timeout; all that this worker holds is delivered again, and idempotent "
                "tasks that run go on. Raise consumer_timeout above the longest run or delay "
                "(celery idem check, IDEM012)"
            )
            raise HeldTooLong(str(error)) from error

    return around


def was_held_too_long(error: BaseException) -> bool:
    """Whether a channel was closed for a delivery that was not acked in time; the same code also
    says that a queue was declared with other arguments."""
    code, text = getattr(error, "reply_code", None), str(getattr(error, "reply_text", ""))
    return code == _PRECONDITION_FAILED and "acknowledgement" in text and "timed out" in text
