"""A letter's parts as JSON text and back, for stores that keep text. The body stays bytes.

What JSON can't hold is kept as its ``repr``: a header is shown and sent again as far as it was
JSON to begin with, and nothing from a message is ever evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from celery_idem.deadletters.letter import Attempt, Fault, Letter, Message, Reason, State


def dump_letter(letter: Letter) -> str:
    """Everything but bodies, counters of the store and history."""
    return _dumps(
        {
            "reason": letter.reason.value,
            "message": _envelope(letter.message),
            "task": letter.task,
            "task_id": letter.task_id,
            "key": letter.key,
            "lane": letter.lane,
            "fault": {
                "error_type": letter.fault.error_type,
                "message": letter.fault.message,
                "traceback": letter.fault.traceback,
                "place": letter.fault.place,
                "group": letter.fault.group,
            },
            "retries": letter.retries,
            "crashes": letter.crashes,
            "fence": letter.fence,
            "worker": letter.worker,
            "replayable": letter.replayable,
        }
    )


def load_letter(
    letter_id: str,
    text: str | bytes,
    body: bytes,
    *,
    first_ms: int,
    last_ms: int,
    times: int,
    position: int = 0,
    history: tuple[Attempt, ...] = (),
    original: Message | None = None,
    state: State = State.NEW,
) -> Letter:
    """The inverse of :func:`dump_letter`, with what the store keeps beside it."""
    data = json.loads(text)
    return Letter(
        id=letter_id,
        reason=Reason(data["reason"]),
        message=_message(data["message"], body),
        task=data["task"],
        task_id=data["task_id"],
        key=data["key"],
        lane=data["lane"],
        fault=Fault(**data["fault"]),
        retries=data["retries"],
        crashes=data["crashes"],
        fence=data["fence"],
        worker=data["worker"],
        replayable=data["replayable"],
        first_died_ms=first_ms,
        last_died_ms=last_ms,
        times=times,
        position=position,
        history=history,
        original=original,
        state=state,
    )


def dump_message(message: Message) -> str:
    """A message as text, its body in hexadecimal."""
    return _dumps({**_envelope(message), "body": message.body.hex()})


def load_message(text: str | bytes) -> Message:
    """The inverse of :func:`dump_message`."""
    data = json.loads(text)
    return _message(data, bytes.fromhex(data["body"]))


def dump_attempt(attempt: Attempt) -> str:
    """One line."""
    return _dumps([attempt.at_ms, attempt.what, attempt.by, attempt.detail])


def load_attempt(line: str | bytes) -> Attempt:
    """The inverse of :func:`dump_attempt`."""
    at_ms, what, by, detail = json.loads(line)
    return Attempt(at_ms, what, by, detail)


def _envelope(message: Message) -> dict[str, Any]:
    return {
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "headers": message.headers,
        "properties": message.properties,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "queue": message.queue,
    }


def _message(data: Mapping[str, Any], body: bytes) -> Message:
    return Message(
        body=body,
        content_type=data["content_type"],
        content_encoding=data["content_encoding"],
        headers=data["headers"],
        properties=data["properties"],
        exchange=data["exchange"],
        routing_key=data["routing_key"],
        queue=data["queue"],
    )


def _dumps(value: Any) -> str:
    return json.dumps(value, default=repr, ensure_ascii=True, separators=(",", ":"))
