"""A message as bytes: kombu's own envelope, so that stock workers and tools can read it too."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from types import NoneType
from typing import Any

from kombu.utils.json import dumps as kombu_dumps
from kombu.utils.json import loads as kombu_loads

#: Header by which a message says how often it was delivered before (as RabbitMQ's quorum queues).
DELIVERY_COUNT = "x-delivery-count"
#: Header by which the original ETA is kept when the broker has waited for it.
WAITED_ETA = "x-eta"


class Unreadable(ValueError):
    """The bytes are no envelope."""


def encode(message: dict[str, Any]) -> str:
    """The envelope as JSON; values that plain JSON does not know are kombu's business."""
    try:
        return json.dumps(message)
    except TypeError:
        return str(kombu_dumps(message))


def decode(raw: bytes) -> dict[str, Any]:
    """The envelope of these bytes, or :class:`Unreadable`."""
    try:
        # kombu's reader looks at every object for its marker, which costs more than the parsing
        payload = kombu_loads(raw) if b'"__type__"' in raw else json.loads(raw)
        properties = payload["properties"]
        payload["headers"] = _object(payload.get("headers"))
        properties["delivery_info"] = _object(properties.get("delivery_info"))
        if not isinstance(payload.get("body"), (str, bytes, NoneType)):
            raise TypeError("the body is no text")
    except Exception as error:  # whatever kombu's markers make of it
        raise Unreadable(str(error)) from error
    return payload  # type: ignore[no-any-return]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, (dict, NoneType)):
        raise TypeError("headers or delivery_info are no object")
    return value or {}


def mark_delivery(payload: dict[str, Any], tag: str, deliveries: int, *, waited: bool) -> None:
    """Write into the envelope what only the broker knows of this delivery."""
    properties, headers = payload["properties"], payload["headers"]
    properties["delivery_tag"] = tag
    if deliveries:
        properties["delivery_info"]["redelivered"] = True
        headers["redelivered"] = True
        headers[DELIVERY_COUNT] = deliveries
    else:
        # a retry takes its request's headers along: these belong to another message
        headers.pop("redelivered", None)
        headers.pop(DELIVERY_COUNT, None)
    if waited and headers.get("eta"):
        # It is due by the server's clock. A worker whose clock is slow would wait once more.
        headers[WAITED_ETA], headers["eta"] = headers["eta"], None


def delay_s_of(message: dict[str, Any]) -> float | None:
    """Seconds from now until a task's ETA, by this process's clock (which made the ETA).

    ``None`` when there is none, or none that is sure: the worker then deals with it.
    """
    eta = message.get("headers", {}).get("eta")
    if not isinstance(eta, str) or "task" not in message["headers"]:
        return None
    try:
        due = datetime.fromisoformat(eta.replace("Z", "+00:00"))
    except ValueError:
        return None
    if due.tzinfo is None:
        return None
    return (due - datetime.now(timezone.utc)).total_seconds()
