"""What never reaches a task: unknown names, unreadable bodies, malformed envelopes (DESIGN §6.6).

Celery 5.7 rejects such a message first (on Redis: it is gone) and reports it then. Here the letter
is stored first, and the message is acked after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.app.task import Context
from celery.exceptions import NotRegistered
from kombu.transport import redis as kombu_redis

from celery_idem import revoking
from celery_idem.deadletters import garbage, post, putting_off, retention
from celery_idem.deadletters.breaker import Breaker
from celery_idem.deadletters.choose import letter_settings_of, letters_of
from celery_idem.deadletters.letter import (
    Letter,
    Message,
    Reason,
    fault_of,
    letter_id,
    named_fault,
)
from celery_idem.deadletters.parent import lane_of, message_of
from celery_idem.ending import EndingRequest, joined

logger = logging.getLogger("celery_idem.deadletters")

#: What a message's own malformed parts raise in Celery's strategy before the task is known.
_MALFORMED = (TypeError, KeyError, ValueError, AttributeError, IndexError)


class DeadLetterStep(bootsteps.StartStopStep):
    """Puts this package's handlers in front of the consumer's, at each start of it: the
    consumer is there, and its loop has not begun to read."""

    name = "celery_idem.deadletters"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._made = False
        consumer.idem_breaker = Breaker(consumer)
        settings = letter_settings_of(consumer.app)  # an error in them is one of start-up
        if settings.route == "store":
            letters_of(consumer.app)
        if settings.flood_per_minute and settings.flood_pause_s:
            _warn_of_a_deaf_worker(consumer.app)
        if settings.all_tasks:
            _watch_plain_tasks(consumer.app)

    def start(self, consumer: Any) -> None:
        revoking.load(consumer.app)  # also after a lost connection: it may have missed some
        handlers = Handlers(consumer)
        consumer.on_unknown_task = handlers.on_unknown_task
        consumer.on_unknown_message = handlers.on_unknown_message
        consumer.on_invalid_task = handlers.on_invalid_task
        consumer.on_decode_error = handlers.on_decode_error
        consumer.task_consumer.on_decode_error = handlers.on_decode_error
        if not self._made:
            self._made = True
            self._sweep_at_times(consumer)
            consumer.create_task_handler = handlers.guarded(consumer.create_task_handler)
        channel = consumer.task_consumer.channel
        if isinstance(channel, kombu_redis.Channel) and "BRPOP" in channel.handlers:
            garbage.guard(consumer.app, channel, str(consumer.hostname or ""))

    def _sweep_at_times(self, consumer: Any) -> None:
        settings = letter_settings_of(consumer.app)
        if settings.route == "store" and (settings.retention_s or settings.max_letters):
            consumer.timer.call_repeatedly(retention.EVERY_S, lambda: retention.sweep(consumer.app))


def _warn_of_a_deaf_worker(app: Any) -> None:
    if not app.conf.worker_enable_remote_control:
        logger.warning(
            "flood_per_minute pauses queues by remote control, and worker_enable_remote_control "
            "is off: this worker will not hear of a flood"
        )


def _watch_plain_tasks(app: Any) -> None:
    """``all_tasks``: the requests of tasks that are not idempotent look after letters, too."""
    for task in app.tasks.values():
        if task.name.startswith("celery."):
            continue
        task.Request = joined(task.Request, EndingRequest, task.name)


class Handlers:
    """Stand-ins for the consumer's own; each stores, settles and acks."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._app = consumer.app

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Put off with a growing delay for ``unknown_task_grace_s``: another worker, or this one
        after its deploy, may know the task (C19). Then a letter."""
        grace_s = letter_settings_of(self._app).unknown_task_grace_s
        name = _name_of(message)
        if putting_off.unknown_task(self._consumer, message, name, grace_s):
            return
        fault = named_fault("celery.exceptions.NotRegistered", name, place=name)
        self._bury(message, Reason.UNKNOWN_TASK, fault, NotRegistered(name))

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """No task's name anywhere."""
        fault = named_fault("malformed", "the message names no task")
        self._bury(message, Reason.UNDECODABLE, fault, None)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        """A refused content type, or an envelope that Celery's protocol does not know."""
        self._bury(message, Reason.UNDECODABLE, fault_of(exc), exc)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """A body that its content type does not describe."""
        self._bury(message, Reason.UNDECODABLE, fault_of(exc), exc)

    def guarded(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Celery's handler, under which a malformed header does not end the worker."""

        def create_task_handler(*args: Any, **options: Any) -> Any:
            handle = make(*args, **options)

            def on_task_received(message: Any) -> Any:
                try:
                    return handle(message)
                except _MALFORMED as exc:
                    if message.acknowledged or isinstance(exc, self._connection_errors):
                        raise
                    logger.exception("a message could not be read")
                    return self._bury(message, Reason.UNDECODABLE, fault_of(exc), exc)

            return on_task_received

        return create_task_handler

    @property
    def _connection_errors(self) -> tuple[type[BaseException], ...]:
        consumer = self._consumer
        errors = (*consumer.connection_errors, *getattr(consumer, "channel_errors", ()))
        # kombu 5.7's Redis transport counts KeyError among its connection errors.
        return tuple(each for each in errors if not issubclass(each, LookupError))

    def _bury(self, message: Any, reason: Reason, fault: Any, error: Exception | None) -> None:
        try:
            kept = message_of(message)
            post.put(self._app, self._letter(message, kept, reason, fault), quick=True)
        except Exception as unable:
            # Whatever it is: a message that is not set aside is not acked.
            logger.error("a letter could not be stored (%s); the message waits", unable)
            putting_off.hold(self._consumer, message, lambda: self._bury(
                message, reason, fault, error))  # fmt: skip
            return
        if error is not None:
            settle(self._app, message, error)
        message.ack_log_error(logger, self._connection_errors)

    def _letter(self, message: Any, kept: Message, reason: Reason, fault: Any) -> Letter:
        task_id = _text(kept.headers.get("id"))
        task = _name_of(message)
        return Letter(
            id=letter_id(task_id, kept),
            reason=reason,
            message=kept,
            task=task,
            task_id=task_id,
            key=_key_of(task, kept),
            lane=lane_of(self._app, kept),
            fault=fault,
            retries=_count(kept.headers.get("retries")),
            worker=str(self._consumer.hostname or ""),
        )


def settle(app: Any, message: Any, error: Exception) -> None:
    """The task is a failure for whoever waits for it: its state, its chord, its errbacks."""
    headers = message.headers if isinstance(message.headers, dict) else {}
    task_id = _text(headers.get("id"))
    if not task_id:
        return
    request = dict(headers)
    try:
        args, kwargs, embed = message.payload
        request.update({"args": args, "kwargs": kwargs}, **(embed or {}))
    except Exception:
        # Unreadable: nobody knows its chord.
        logger.debug("the follow-ups of a letter are unreadable")
    try:
        app.backend.mark_as_failure(task_id, error, request=Context(request))
    except Exception as unable:
        logger.warning("a letter's failure could not be noted as its result: %s", unable,
                       extra={"task_id": task_id})  # fmt: skip


def _name_of(message: Any) -> str:
    headers = message.headers if isinstance(message.headers, dict) else {}
    if "task" in headers:
        return _text(headers["task"])
    try:
        return _text(message.payload["task"])  # protocol 1
    except Exception:
        return ""


def _key_of(task: str, message: Message) -> str:
    given = message.headers.get("idem_key")
    return f"{task}:{given}" if isinstance(given, str) and task else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
