"""The consumer channel's record of deliveries, kept by the keeper instead of by a timeout."""

from __future__ import annotations

import logging
from typing import Any

import redis
from kombu.transport import virtual
from kombu.transport.redis import QoS
from kombu.utils.json import dumps, loads

from celery_idem.stores.redis.scripts import ScriptRunner, is_transient
from celery_idem.visibility.keeper import Keeper
from celery_idem.visibility.routes import queues_of

logger = logging.getLogger("celery_idem.visibility")

#: A worker that stops waits so long for what it has still to say to the broker, in seconds.
FINISH_S = 5.0


class KeptQoS(QoS):
    """kombu's Redis QoS whose records stay invisible while this process lives.

    Same round trips as kombu's: one to record a delivery, one to ack it. What can't be said to
    the server now (outage) is said by the keeper as soon as it is back, so an ack is not lost
    with its connection, and nothing here asks a channel for a connection that is gone.
    """

    channel: Any

    def __init__(self, channel: Any, prefetch_count: int = 0, *, keeper: Keeper) -> None:
        super().__init__(channel, prefetch_count)
        self.keeper = keeper
        self.holder = keeper.new_holder()
        self._runner: ScriptRunner | None = None

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record the delivery under a tag of its own, then count it."""
        tag = self.holder.next_tag()
        message.delivery_tag = message.properties["delivery_tag"] = tag
        info = message.delivery_info
        record = dumps([message._raw, info["exchange"], info["routing_key"]])
        try:
            fresh = self._record(tag, record)
        except Exception:
            # Popped, and nowhere recorded: nobody but this process has it.
            self.keeper.put_back_later(self.holder, tag, record)
            raise
        if fresh and self.holder.open:
            self.keeper.lost(self.holder, list(self.holder.open))
        self.holder.open[tag] = message
        virtual.QoS.append(self, message, tag)

    def ack(self, delivery_tag: str) -> None:
        """Remove the delivery for good; later, when the server can't be reached now."""
        self._settle(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Remove the delivery, or put it back behind all that waits in its queue."""
        message = self.holder.open.pop(delivery_tag, None) if requeue else None
        if message is not None:
            self.keeper.give_back(self.holder, [delivery_tag], front=False)
        elif not requeue:
            self._settle(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """The channel closes: put back what nobody works on (in batches, one round trip each).

        After a connection loss the tasks that run go on, so their messages stay held and are
        acked through the keeper when they are done.
        """
        if self._delivered is not None:
            self._delivered.clear()
        self.let_go()

    def let_go(self) -> None:
        """The channel is of no use any more. Counts once, then nothing more is given back."""
        if self.holder.closed:
            return
        back = self.holder.close(self.keeper.running())
        self.keeper.give_back(self.holder, back, front=None, retire=True)
        if self.keeper.stopping():
            self.keeper.finish(FINISH_S)

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        """Redeliver what a worker without the plugin left behind, if there is a queue for it."""
        with self.channel.conn_or_acquire(client) as connection:
            record = connection.hget(self.unacked_key, tag)
            if record and not self._has_queue(record):
                logger.error(
                    "a message in %r can't be redelivered: no queue is bound to its exchange and "
                    "routing key; it stays there",
                    self.unacked_key,
                    extra={"delivery_tag": tag},
                )
                return
            super().restore_by_tag(tag, connection, leftmost)

    @property
    def stranded(self) -> bool:
        """Whether the channel is closed, or lost what it would need to be."""
        transport = self.channel.connection
        return bool(self.channel.closed) or transport is None or transport.client is None

    def _has_queue(self, record: bytes) -> bool:
        _, exchange, routing_key = loads(record)
        return bool(queues_of(self.channel, exchange, routing_key))

    def _record(self, tag: str, record: str) -> bool:
        runner = self._scripts()
        if runner is None:
            raise redis.ConnectionError("the channel lost its connection")
        return self.keeper.ledger.hold(runner, self.holder.id, tag, record)

    def _settle(self, tag: str) -> None:
        self.holder.open.pop(tag, None)
        runner = self._scripts()
        if runner is None or self.keeper.busy:
            self.keeper.settle(self.holder, tag)
            return
        try:
            there = self.keeper.ledger.settle(runner, self.holder.id, [tag])
        except Exception as error:
            if not is_transient(error):
                raise
            self.keeper.settle_later(self.holder, tag)
            return
        if not there:
            self.keeper.note_late_ack(tag)

    def _scripts(self) -> ScriptRunner | None:
        """A runner on the channel's own pool, or None where the channel has lost it.

        kombu empties ``transport.client`` before the last close of a channel; asking such a
        channel for its pool ends the worker (celery 5.7: ``'NoneType' … 'hostname'``). One
        connection is held, for the consumer; a pool of threads that ack at once borrows others,
        so that kombu's limit (``max_connections``) is never used up by what lies idle.
        """
        if self.stranded:
            return None
        channel = self.channel
        if self._runner is None or self._runner.client.connection_pool is not channel.pool:
            # not channel.Client: it would prefix the first key of a script only
            client = redis.Redis(connection_pool=channel.pool)
            self._runner = ScriptRunner(client, patience_s=0, spare=1)
        return self._runner
