"""Where a recorded delivery goes back to: computed as kombu does, with one difference.

kombu removes the record and then finds that there is no queue; here nothing is removed until
there is one (C23).
"""

from __future__ import annotations

from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

from celery_idem.visibility.ledger import Redelivery


class Routes:
    """Answers where messages go, by one kombu channel; remembers the answers, so use it for one
    batch only."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._known: dict[tuple[str, str], list[str]] = {}

    def back(
        self, tag: str, record: bytes | str, *, front: bool | None = None
    ) -> Redelivery | None:
        """The delivery's way back, or None when no queue is bound to where it was sent.

        ``front=None``: the first redelivery goes to the front, so a killed worker costs no second
        wait in the queue; a further one to the back, so a message that kills its worker lets the
        others pass.
        """
        payload, exchange, routing_key = loads(bytes_to_str(record))
        if front is None:
            front = not (payload.get("headers") or {}).get("redelivered")
        _mark_redelivered(payload)
        channel = self._channel
        priority = channel._get_message_priority(payload, reverse=False)
        queues = tuple(
            channel.global_keyprefix + channel._q_for_pri(queue, priority)
            for queue in self._queues(exchange, routing_key)
        )
        return Redelivery(tag, dumps(payload), queues, front) if queues else None

    def _queues(self, exchange: str, routing_key: str) -> list[str]:
        place = (exchange, routing_key)
        if place not in self._known:
            self._known[place] = queues_of(self._channel, exchange, routing_key)
        return self._known[place]


def queues_of(channel: Any, exchange: str, routing_key: str) -> list[str]:
    """Queues that a message with this exchange and routing key is for; kombu's lookup, which also
    finds topic bindings of an exchange that this process never declared."""
    unknown = exchange and exchange not in channel.state.exchanges
    if unknown and "topic" in channel.exchange_types:
        table = [row for row in channel.get_table(exchange) if row[1]]
        topic = channel.exchange_types["topic"]
        if found := topic.lookup(table, exchange, routing_key, None):
            return [queue for queue in found if queue]
    return [queue for queue in channel._lookup(exchange, routing_key) if queue]


def _mark_redelivered(payload: Any) -> None:
    # kombu 5.7 redis.py, _do_restore_message: both or, without headers, none
    try:
        payload["headers"]["redelivered"] = True
        payload["properties"]["delivery_info"]["redelivered"] = True
    except (KeyError, TypeError):
        pass
