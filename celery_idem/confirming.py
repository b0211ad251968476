"""Publishing a message for which another will be acked or deleted: the broker has it for sure, or
there is an error in time (C21).

By default a message to RabbitMQ counts as sent once it is written to the socket. A broker that is
short of memory or disk does not read it from there, and one that dies has never had it. So what
this package publishes in exchange for something else (a retry, a copy that waits, a replay, a
letter on a queue) waits for the broker's confirm, for five seconds at most, whatever the app's
``confirm_publish`` says. The other transports answer to every message by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Producer

from celery_idem.core.errors import NotConfirmed

#: Longest wait for the broker's word on one message, in seconds.
CONFIRM_S = 5.0
#: Longest wait for a connection of the pool in an event loop, in seconds; elsewhere ``CONFIRM_S``.
QUICK_S = 0.5
#: So long, in seconds, an event loop asks no more after a message that was not confirmed.
REST_S = 10.0

# What an AMQP connection carries while it lives.
_LINE = "_idem_line"
# What a pool of connections carries: until when event loops ask for none of them.
_RESTS_UNTIL = "_idem_rests_until"


@contextmanager
def confirming(app: Any, *, quick: bool = False) -> Iterator[ConfirmingProducer | None]:
    """A producer for one message or more, to be given as ``producer=``; ``None`` where the
    transport is not AMQP, and any producer will do.

    ``quick``: from an event loop. Many messages may be due there at once, which can't each wait
    for a broker that has just not answered: :class:`NotConfirmed` comes at once then.
    """
    pool = app.pool
    if pool.connection.transport.driver_name != "py-amqp":
        yield None
        return
    if quick and time.monotonic() < getattr(pool, _RESTS_UNTIL, 0.0):
        raise NotConfirmed("the broker did not confirm a message a moment ago")
    # Not as a context: after an error kombu would end the connection in order, and wait for the
    # answer of a broker that does not read (kombu 5.7 ``connection.py: PooledConnection``).
    patience_s = QUICK_S if quick else CONFIRM_S
    try:
        connection = pool.acquire(block=True, timeout=patience_s)
    except pool.LimitExceeded as error:
        raise NotConfirmed(
            f"all {pool.limit} connections to the broker were in use for {patience_s:g} s "
            "(broker_pool_limit)"
        ) from error
    producer = ConfirmingProducer(connection, quick=quick)
    try:
        yield producer
    except NotConfirmed:
        setattr(pool, _RESTS_UNTIL, time.monotonic() + REST_S)
        raise
    finally:
        if producer.is_left_waiting and not pool.limit:
            connection.collect()  # without a limit its release is its end
        connection.release()


class ConfirmingProducer(Producer):
    """kombu's, on a channel of its own where each message is confirmed.

    Raises :class:`NotConfirmed` after ``CONFIRM_S``, and what kombu raises.
    """

    def __init__(self, connection: Any, *, quick: bool = False) -> None:
        super().__init__(connection, auto_declare=False)
        self._quick = quick
        #: whether the broker owes an answer that nobody waits for any more
        self.is_left_waiting = False

    def publish(self, body: Any, *args: Any, **options: Any) -> Any:
        options["timeout"] = options.get("timeout") or CONFIRM_S
        options["confirm_timeout"] = options.get("confirm_timeout") or CONFIRM_S
        # By the default exchange, to a queue: one that is not there is an error, not a hole.
        # (Exchanges that delay answer for themselves.)
        options.setdefault("mandatory", not options.get("exchange"))
        return super().publish(body, *args, **options)

    def _publish(self, *args: Any, **options: Any) -> Any:
        """Under kombu's retries, which are for connections that are lost."""
        connection: Any = self.connection
        # what some other user's error has closed is in kombu's pool again (5.7 ``__exit__``)
        line = _line_of(connection.connect())
        self.is_left_waiting = True
        line.wait_until_read(0.0 if self._quick else CONFIRM_S)
        if line.owes:
            connection.collect()
            line = _line_of(connection.connect())
        try:
            with line.raw.transport.having_timeout(CONFIRM_S):  # of declarations, too
                self.channel = line.channel(connection)
                line.owes = True
                answer = super()._publish(*args, **options)
        except TimeoutError as error:
            raise NotConfirmed(
                f"the broker did not confirm a message within {CONFIRM_S:g} s"
            ) from error
        line.owes = self.is_left_waiting = False
        return answer


class _Line:
    """What is known of one AMQP connection: whether the broker reads it, and whether it owes an
    answer, which py-amqp would take for the next message's (5.4: ``basic_publish_confirm`` takes
    any ack)."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._channel: Any = None
        self.blocked = False
        self.owes = False
        raw.on_blocked = _after(raw.on_blocked, self._on_blocked)
        raw.on_unblocked = _after(raw.on_unblocked, self._on_unblocked)

    def channel(self, connection: Any) -> Any:
        """The connection's confirming channel."""
        if self._channel is None or self._channel.connection is None:
            self._channel = connection.channel()
            self._channel.basic_publish = self._channel.basic_publish_confirm
        return self._channel

    def wait_until_read(self, patience_s: float) -> None:
        """Nothing more is written to a broker that blocks its publishers: it would have as many
        copies when it goes on as there were tries."""
        gives_up = time.monotonic() + patience_s
        while self.blocked:
            try:
                self.raw.drain_events(timeout=max(0.01, gives_up - time.monotonic()))
            except TimeoutError as error:
                raise NotConfirmed(
                    "the broker blocks publishers (an alarm of memory or disk: rabbitmqctl status)"
                ) from error

    def _on_blocked(self, *_: Any) -> None:
        self.blocked = True

    def _on_unblocked(self, *_: Any) -> None:
        self.blocked = False


def _line_of(raw: Any) -> _Line:
    line: _Line | None = getattr(raw, _LINE, None)
    if line is None:
        line = _Line(raw)
        setattr(raw, _LINE, line)
    return line


def _after(first: Callable[..., Any] | None, then: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any) -> None:
        if first is not None:
            first(*args)
        then(*args)

    return both
