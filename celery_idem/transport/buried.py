"""What the broker itself has set aside (``rs:{queue}:dead``), brought among the dead letters.

The scripts of the transport can't write a letter: they set aside what nobody can read and what was
delivered too often. Workers bring it over every :data:`EVERY_S` seconds, ``dlq collect`` at once.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps

from celery_idem.core.errors import IdemError, Poisoned
from celery_idem.deadletters import post, step
from celery_idem.deadletters.choose import letter_settings_of
from celery_idem.deadletters.letter import Letter, Message, Reason, letter_id, named_fault
from celery_idem.deadletters.moving import key_of
from celery_idem.deadletters.parent import lane_of, message_of
from celery_idem.transport import envelope

logger = logging.getLogger("celery_idem.transport")

#: How often a worker looks, in seconds, and how many it brings over at most each time, so that its
#: event loop is not held up.
EVERY_S = 30.0
MOST_AT_ONCE = 100
BATCH = 100
#: Longest time for which one worker's look keeps the others from theirs, in milliseconds.
LOOK_MS = 20_000


def has_buried(channel: Any) -> bool:
    """Whether this channel's broker sets messages aside in streams."""
    return hasattr(channel, "keys") and hasattr(channel, "raw")


def queues(channel: Any) -> list[str]:
    """The queues of which something was set aside."""
    streams = list(channel.raw.scan_iter(f"{channel.keys.any_lane}:dead", count=1000))
    lanes = [name.decode().removesuffix(":dead") for name in streams if channel.raw.xlen(name)]
    return sorted(channel.keys.queue(lane) for lane in lanes)


def collect(app: Any, channel: Any, queue: str, limit: int = 0, *, quick: bool = False) -> int:
    """Store what was set aside as letters; each is removed once it is stored, so an interruption
    loses nothing, and a second look stores the same letter.

    ``limit``: at most so many; 0: all. Raises ``StoreUnavailable``.
    """
    key, count = f"{channel.keys.lane(queue)}:dead", 0
    while not limit or count < limit:
        entries = channel.raw.xrange(key, count=min(BATCH, limit - count) if limit else BATCH)
        if not entries:
            break
        for entry, fields in entries:
            _keep(app, channel, queue, fields, quick)
            channel.raw.xdel(key, entry)
            count += 1
    return count


def _keep(app: Any, channel: Any, queue: str, fields: dict[bytes, bytes], quick: bool) -> None:
    raw, why = fields.get(b"m", b""), fields.get(b"reason", b"unknown").decode("utf-8", "replace")
    counted = fields.get(b"n", b"")
    deliveries = int(counted) if counted.isdigit() else 0
    try:
        message = channel.Message(envelope.decode(raw), channel=channel)
        kept = message_of(message)
    except Exception:  # whatever it is that can't be read: its bytes are kept
        post.keep(app, _unreadable(queue, raw), quick=quick)
        return
    letter = _set_aside(app, queue, kept, why, deliveries)
    post.keep(app, letter, quick=quick)
    step.settle(app, message, Poisoned(letter.fault.message))


def _unreadable(queue: str, raw: bytes) -> Letter:
    message = Message(body=raw, routing_key=queue, queue=queue)
    return Letter(
        id=letter_id("", message),
        reason=Reason.UNDECODABLE,
        message=message,
        fault=named_fault("malformed", "no message of Celery's"),
        replayable=False,
    )


def _set_aside(app: Any, queue: str, message: Message, why: str, deliveries: int) -> Letter:
    task, task_id = (str(message.headers.get(name) or "") for name in ("task", "id"))
    text = f"set aside by the broker: {why}, after {deliveries} deliveries"
    return Letter(
        id=letter_id(task_id, message),
        reason=Reason.BROKER,
        message=message,
        task=task,
        task_id=task_id,
        key=key_of(app, task, task_id, message),
        lane=lane_of(app, message),
        fault=named_fault(f"broker:{why}", text, place=queue),
    )


class BuriedStep(bootsteps.StartStopStep):
    """Brings over what was set aside of the queues that this worker consumes."""

    name = "celery_idem.buried"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        """At every start of the consumer: the channel is a new one then."""
        self.stop(consumer)
        channel = consumer.task_consumer.channel
        if has_buried(channel) and letter_settings_of(consumer.app).route == "store":
            self._timer = consumer.timer.call_repeatedly(EVERY_S, lambda: _sweep(consumer, channel))

    def stop(self, consumer: Any) -> None:
        timer = getattr(self, "_timer", None)
        if timer is not None:
            timer.cancel()

    shutdown = stop


def _sweep(consumer: Any, channel: Any) -> None:
    for queue in list(consumer.app.amqp.queues.consume_from):
        try:
            _collect_alone(consumer.app, channel, queue)
        except (IdemError, *consumer.connection_errors) as error:
            logger.warning("what the broker set aside stays there for now: %s", error)
            return


def _collect_alone(app: Any, channel: Any, queue: str) -> None:
    """Not while another worker does: a letter that two store has died twice."""
    looking = f"{channel.keys.lane(queue)}:dead:look"
    if not channel.raw.set(looking, b"", nx=True, px=LOOK_MS):
        return
    collect(app, channel, queue, MOST_AT_ONCE, quick=True)
    channel.raw.delete(looking)
