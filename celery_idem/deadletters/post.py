"""The one way in: a letter is redacted, stored (or sent to its queue), and told of."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from celery_idem import signals
from celery_idem.core.errors import StoreUnavailable
from celery_idem.deadletters import codec, flood
from celery_idem.deadletters.choose import (
    LetterSettings,
    letter_settings_of,
    letters_of,
    quick_letters_of,
    redactor,
)
from celery_idem.deadletters.letter import Letter
from celery_idem.deadletters.publish import own_headers, send

logger = logging.getLogger("celery_idem.deadletters")

#: Header of a letter on a queue: all that is not the message itself.
LETTER_HEADER = "idem_letter"


def put(app: Any, letter: Letter, *, quick: bool = False) -> None:
    """Store a letter and tell whoever listens. ``quick``: from an event loop, which can't wait.

    Raises ``StoreUnavailable``: then the message must not be acked.
    """
    settings = letter_settings_of(app)
    if settings.route == "queue":
        letter = redacted(letter, settings)
        _to_queue(app, letter, settings, quick)
        _tell(app, letter)
    else:
        letter = keep(app, letter, quick=quick)
        flood.look(app, quick_letters_of(app) if quick else letters_of(app), letter, settings)


def keep(app: Any, letter: Letter, *, quick: bool = False) -> Letter:
    """Into the store wherever new letters go, for what is collected. Returns what is stored.

    Raises ``StoreUnavailable``.
    """
    store = quick_letters_of(app) if quick else letters_of(app)
    letter = store.put(redacted(letter, letter_settings_of(app)))
    _tell(app, letter)
    return letter


def _tell(app: Any, letter: Letter) -> None:
    logger.warning(
        "%s[%s]: dead letter %s: %s",
        letter.task,
        letter.task_id,
        letter.id,
        letter.reason.value,
        extra={"key": letter.key, "task_id": letter.task_id, "letter": letter.id},
    )
    signals.send(signals.dead_lettered, app, key=letter.key, letter=letter)


def redacted(letter: Letter, settings: LetterSettings) -> Letter:
    """The letter as ``redact`` wants it kept. One whose message was changed can't be replayed; a
    hook that raises keeps nothing of what it should have hidden."""
    hook = redactor(settings)
    if hook is None:
        return letter
    try:
        kept: Letter = hook(letter)
    except Exception as error:
        logger.error("redact failed (%s): the body is not kept", type(error).__name__)
        hidden = replace(letter.message, body=b"", headers={}, properties={})
        fault = replace(letter.fault, message="", traceback="")
        return replace(letter, message=hidden, fault=fault, replayable=False)
    return kept if kept.message == letter.message else replace(kept, replayable=False)


def queue_of(letter: Letter, settings: LetterSettings) -> str:
    """The broker queue of a letter with ``route="queue"``."""
    return settings.queue.replace("{lane}", letter.lane or "none")


def _to_queue(app: Any, letter: Letter, settings: LetterSettings, quick: bool) -> None:
    queue = queue_of(letter, settings)
    headers = own_headers(letter.message.headers)
    headers[LETTER_HEADER] = codec.dump_letter(letter)
    try:
        with app.connection_for_write() as connection:
            app.amqp.queues.new_missing(queue)(connection.default_channel).declare()
        send(app, letter.message, headers, queue=queue, quick=quick)
    except Exception as error:
        raise StoreUnavailable(f"the queue {queue!r} did not take a letter: {error}") from error
