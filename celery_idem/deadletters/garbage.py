"""What is in a Redis list and is no message of kombu's (C20).

kombu 5.7 (``redis.py: _brpop_read``) decodes what it popped outside of any guard: plain text in a
queue ends the worker, and the text is gone. Here it becomes a letter, and the worker reads on.
"""

from __future__ import annotations

import logging
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from celery_idem.deadletters import post
from celery_idem.deadletters.letter import Letter, Message, Reason, letter_id, named_fault

logger = logging.getLogger("celery_idem.deadletters")

_MARK = "_idem_guarded"


def guard(app: Any, channel: Any, worker: str) -> None:
    """Let this channel survive what it can't read. Costs nothing for what it can."""
    if getattr(channel, _MARK, False):
        return
    setattr(channel, _MARK, True)
    popped: list[Any] = [None]
    read = channel.handlers["BRPOP"]

    def remember(client: Any) -> None:
        parse = client.parse_response

        def parse_response(connection: Any, command_name: Any, **options: Any) -> Any:
            reply = parse(connection, command_name, **options)
            if command_name == "BRPOP":
                popped[0] = reply
            return reply

        client.parse_response = parse_response

    remembered: list[Any] = []

    def guarded(**options: Any) -> Any:
        client = channel.client
        if client not in remembered:
            remembered[:] = [client]
            remember(client)
        popped[0] = None
        try:
            return read(**options)
        except Exception as error:  # kombu 5.7 counts KeyError among its connection errors
            if popped[0] is None:
                raise
            queue, raw = popped[0]
            if is_message(channel, raw):
                raise
            _bury(app, channel, bytes_to_str(queue), raw, error, worker)
            return True

    channel.handlers["BRPOP"] = guarded


def is_message(channel: Any, raw: Any) -> bool:
    """Whether kombu can make a message of it."""
    try:
        payload = loads(bytes_to_str(raw))
        message = channel.Message(payload, channel=channel)
        return isinstance(message.delivery_info["exchange"], str) and isinstance(
            message.delivery_info["routing_key"], str
        )
    except Exception:
        return False


def _bury(app: Any, channel: Any, key: str, raw: Any, error: Exception, worker: str) -> None:
    body = raw if isinstance(raw, bytes) else str(raw).encode("utf-8", "surrogateescape")
    queue = key.rsplit(channel.sep, 1)[0]
    message = Message(body=body, routing_key=queue, queue=queue)
    fault = named_fault("malformed", f"no message of Celery's: {type(error).__name__}")
    letter = Letter(
        id=letter_id("", message),
        reason=Reason.UNDECODABLE,
        message=message,
        fault=fault,
        worker=worker,
        replayable=False,
    )
    try:
        post.put(app, letter)  # with patience: there is no ack to wait with
    except Exception as unable:
        logger.critical("garbage in %r could not be set aside (%s); it goes back", queue, unable)
        channel.client.lpush(key, raw)
