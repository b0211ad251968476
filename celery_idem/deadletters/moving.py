"""Letters as JSON lines, and from a broker's queue into the store."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from kombu import Queue

from celery_idem.deadletters import codec, post
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import (
    Letter,
    Message,
    Reason,
    letter_id,
    named_fault,
)
from celery_idem.deadletters.parent import lane_of, message_of
from celery_idem.deadletters.post import LETTER_HEADER
from celery_idem.deadletters.tasks import task_named


def dump(letter: Letter) -> str:
    """One line of JSON that holds the whole letter."""
    return json.dumps(
        {
            "id": letter.id,
            "letter": json.loads(codec.dump_letter(letter)),
            "body": letter.message.body.hex(),
            "original": codec.dump_message(letter.original) if letter.original else None,
            "first_died_ms": letter.first_died_ms,
            "last_died_ms": letter.last_died_ms,
            "times": letter.times,
            "history": [codec.dump_attempt(it) for it in letter.history],
        },
        ensure_ascii=True,
    )


def load(line: str) -> Letter:
    """The inverse of :func:`dump`. Raises ``ValueError``, ``KeyError`` or ``TypeError``."""
    data = json.loads(line)
    return codec.load_letter(
        data["id"],
        json.dumps(data["letter"]),
        bytes.fromhex(data["body"]),
        first_ms=int(data["first_died_ms"]),
        last_ms=int(data["last_died_ms"]),
        times=int(data["times"]),
        history=tuple(codec.load_attempt(it) for it in data["history"]),
        original=codec.load_message(data["original"]) if data["original"] else None,
    )


def collect(app: Any, queue: str, limit: int = 0) -> int:
    """Bring a queue's messages into the store; each is acked once it is stored, so an
    interruption loses nothing, and a second look stores the same letter."""
    count = 0
    with app.connection_for_read() as connection:
        bound = Queue(queue)(connection.default_channel)
        while not limit or count < limit:
            message = bound.get(no_ack=False)
            if message is None:
                break
            _keep(app, message_of(message), queue)
            message.ack()
            count += 1
    return count


def _keep(app: Any, message: Message, queue: str) -> None:
    told = message.headers.get(LETTER_HEADER)
    headers = {k: v for k, v in message.headers.items() if k != LETTER_HEADER}
    if isinstance(told, str):  # redacted and told of when it was sent
        letters_of(app).put(_sent_by_us(told, replace(message, headers=headers)))
    else:
        post.keep(app, _by_the_broker(app, message, queue))


def _sent_by_us(told: str, message: Message) -> Letter:
    letter = codec.load_letter("", told, message.body, first_ms=0, last_ms=0, times=1)
    return replace(letter, id=letter_id(letter.task_id, letter.message))


def _by_the_broker(app: Any, message: Message, queue: str) -> Letter:
    """RabbitMQ's own dead-lettering: ``x-death`` says from where, and why."""
    deaths = message.headers.get("x-death")
    death = deaths[0] if isinstance(deaths, list) and deaths else {}
    death = death if isinstance(death, dict) else {}
    keys = death.get("routing-keys")
    came_from = str(death.get("queue") or queue)
    message = replace(
        message,
        exchange=str(death.get("exchange") or ""),
        routing_key=str(keys[0]) if isinstance(keys, list) and keys else came_from,
        queue=came_from,
    )
    task, task_id = (str(message.headers.get(name) or "") for name in ("task", "id"))
    why = str(death.get("reason") or "unknown")
    return Letter(
        id=letter_id(task_id, message),
        reason=Reason.BROKER,
        message=message,
        task=task,
        task_id=task_id,
        key=key_of(app, task, task_id, message),
        lane=lane_of(app, message),
        fault=named_fault(f"broker:{why}", f"dead-lettered by the broker: {why}", place=came_from),
    )


def key_of(app: Any, task_name: str, task_id: str, message: Message) -> str:
    """The key of a message that no worker has looked at; empty where it can't be told."""
    from celery_idem.deadletters.edit import arguments_of
    from celery_idem.delivery import record_key
    from celery_idem.task import IdempotentTask

    given = message.headers.get("idem_key")
    if isinstance(given, str):
        return f"{task_name}:{given}"
    task = task_named(app, task_name)
    if not isinstance(task, IdempotentTask):
        return ""
    try:
        args, kwargs, _ = arguments_of(message)
        return record_key(task, task._terms, task_id, message.headers, args, kwargs)
    except Exception:
        return ""  # the letter is kept all the same
