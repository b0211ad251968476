"""A message as it was, onto a queue again: body byte for byte, headers and properties kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_idem.confirming import confirming
from celery_idem.deadletters.letter import Message
from celery_idem.delivery import REQUEUES_HEADER, WAITS_HEADER

#: Headers that name this package's own counts of one message, or the broker's of its deliveries:
#: a message that is sent again begins without them. RabbitMQ before 4.0.1 takes a message with
#: an old ``x-death`` for a cycle, and drops it (C43).
UNKNOWN_WAITED_HEADER = "idem_unknown_waited_s"
UNKNOWN_TIMES_HEADER = "idem_unknown_times"
NOT_THE_MESSAGES_OWN = (
    WAITS_HEADER,
    REQUEUES_HEADER,
    UNKNOWN_WAITED_HEADER,
    UNKNOWN_TIMES_HEADER,
    "redelivered",
    "x-delivery-count",
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
    "compression",  # kombu has undone it
)
#: Properties of one delivery; ``expiration`` would kill the message again.
_OF_ONE_DELIVERY = (
    "delivery_tag", "delivery_info", "body_encoding", "idem", "expiration", "consumer_tag",
    # AMQP has these among the properties, too
    "content_type", "content_encoding", "headers", "application_headers",
)  # fmt: skip


def own_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The message's headers without the counts of earlier deliveries."""
    return {name: value for name, value in headers.items() if name not in NOT_THE_MESSAGES_OWN}


def send(
    app: Any,
    message: Message,
    headers: Mapping[str, Any],
    *,
    queue: str = "",
    delay_s: float = 0,
    quick: bool = False,
) -> None:
    """Publish it to where it came from, or to ``queue``; ``delay_s`` sets its ETA anew. Returns
    when the broker has it. ``quick``: from an event loop.

    Raises ``NotConfirmed``, or what kombu raises when the broker can't take it.
    """
    headers = dict(headers)
    if delay_s > 0:
        due = datetime.now(timezone.utc) + timedelta(seconds=delay_s)
        headers["eta"] = due.isoformat()
    properties = {k: v for k, v in message.properties.items() if k not in _OF_ONE_DELIVERY}
    exchange, routing_key = message.exchange, message.routing_key
    if queue:
        exchange, routing_key = "", queue
    with confirming(app, quick=quick) as sure, app.producer_or_acquire(sure) as producer:
        producer.publish(
            message.body,
            exchange=exchange,
            routing_key=routing_key,
            headers=headers,
            content_type=message.content_type or "application/octet-stream",
            content_encoding=message.content_encoding or "binary",
            retry=True,
            retry_policy={"max_retries": 3, "interval_start": 0.1, "interval_step": 0.2},
            **properties,
        )
