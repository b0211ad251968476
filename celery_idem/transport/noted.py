"""Jobs that are over, whose acks are still on their way through Celery.

Celery counts a job as over, and leaves its ack to the consumer's loop: in threads, and in green
pools before 5.7. After a lost connection that loop turns only when the broker was reached again.
Until then the message looks like one that nobody works on, and would be given back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import bootsteps


class NotedAcks(bootsteps.Step):
    """Tells a session of each ack and reject as Celery puts it off, not when it comes."""

    name = "celery_idem.noted_acks"

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        make: Callable[[], Any] = consumer.create_task_handler
        name = "call_soon_ack" if hasattr(consumer, "call_soon_ack") else "call_soon"

        def noting_handler() -> Any:
            setattr(consumer, name, _noting(getattr(consumer, name)))
            try:
                return make()  # it remembers the method for all messages
            finally:
                vars(consumer).pop(name, None)

        consumer.create_task_handler = noting_handler


def _noting(call_soon: Callable[..., Any]) -> Callable[..., Any]:
    def noting(act: Any, *args: Any, **kwargs: Any) -> Any:
        message = getattr(act, "__self__", None)
        note = getattr(getattr(message, "channel", None), "note", None)
        if message is not None and note is not None:
            note(message.delivery_tag)
        return call_soon(act, *args, **kwargs)

    return noting
