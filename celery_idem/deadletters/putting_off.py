"""Waiting in the main process: a message stays unacked while a timer runs, so a kill loses
nothing, and nothing spins."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery_idem.deadletters.parent import message_of
from celery_idem.deadletters.publish import (
    UNKNOWN_TIMES_HEADER,
    UNKNOWN_WAITED_HEADER,
    send,
)

logger = logging.getLogger("celery_idem.deadletters")

#: First and longest pause of an unknown task's message, in seconds; doubled in between.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
#: Pause of a message whose letter can't be stored, in seconds.
STORE_PAUSE_S = 5.0


def unknown_task(consumer: Any, message: Any, name: str, grace_s: float) -> bool:
    """Put an unknown task's message off. ``False``: its grace is over.

    It is held here, unacked, for the pause; then a copy that counts goes to the end of its queue,
    where a worker that knows the task may take it, and this one is acked. The copy carries the
    pauses so far: the sum of them is the grace, whatever the clocks of the workers say.
    """
    headers = message.headers if isinstance(message.headers, dict) else {}
    waited_s = headers.get(UNKNOWN_WAITED_HEADER)
    waited_s = waited_s if isinstance(waited_s, (int, float)) else 0.0
    times = headers.get(UNKNOWN_TIMES_HEADER)
    times = times if isinstance(times, int) else 0
    left_s = grace_s - waited_s
    if left_s <= 0:
        return False
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(times, 20), max(left_s, 0.05))
    log = logger.warning if times == 0 else logger.info
    log(
        "unknown task %s: put off for %.1f s; a letter in %.0f s", name, pause_s, left_s,
        extra={"task_id": headers.get("id")},
    )  # fmt: skip

    def again() -> None:
        counted = {**headers, UNKNOWN_TIMES_HEADER: times + 1}
        counted[UNKNOWN_WAITED_HEADER] = waited_s + pause_s
        counted.pop("compression", None)
        try:
            send(consumer.app, message_of(message), counted, quick=True)
        except Exception as error:
            logger.warning("an unknown task could not be sent again: %s", error)
            hold(consumer, message, again)
            return
        message.ack_log_error(logger, consumer.connection_errors)

    hold(consumer, message, again, pause_s)
    return True


def hold(
    consumer: Any, message: Any, then: Callable[[], None], pause_s: float = STORE_PAUSE_S
) -> None:
    """Keep a message unacked for the pause, outside of the prefetch; then go on in the
    consumer's own thread."""
    consumer.qos.increment_eventually()
    channel = message.channel

    def over() -> None:
        if getattr(channel, "closed", False) or message.acknowledged:
            return  # the connection is another by now; the broker delivers it again
        consumer.qos.decrement_eventually()
        then()

    consumer.timer.call_after(pause_s, lambda: consumer.call_soon(over))
