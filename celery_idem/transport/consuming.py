"""How a channel takes messages: one fetch over all lanes, or a wait until somebody rings.

Fetch and acks go out in one write, on the connection that kombu's event loop watches. Only when a
fetch found the lanes empty does the connection wait, for the lanes' bells and not for their
messages: so a worker that is frozen or killed while it waits has been handed nothing.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from queue import Empty
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from celery_idem.transport import envelope, picks, scripts
from celery_idem.transport.answers import AcceptAnswer, AckAnswer, Answer, BellAnswer, FetchAnswer
from celery_idem.transport.leasing import Leasing
from celery_idem.transport.moving import accept_call
from celery_idem.transport.running import a_task_waits
from celery_idem.transport.session import Held, LeaseOver, Session

logger = logging.getLogger("celery_idem.transport")

#: Values of an answer per message: lane, step, id, deliveries, requeues, since, waited, envelope.
ROW = 8
#: While stock's lists are accepted nobody rings for what comes there: longest wait in seconds.
ACCEPT_EVERY_S = 0.5


def _no_promises(queues: Sequence[str]) -> None:
    """Orders that are not by deadline have none."""


class Consuming(Leasing):
    """The half of the channel that takes messages."""

    #: Longest wait of an idle worker before it looks by itself, in seconds.
    block_s = 5.0
    #: Most messages that one fetch takes.
    fetch_limit = 64
    #: Deliveries without an ack after which a message is set aside. 0: never. A message that only
    #: sat in the prefetch of a killed worker counts too, so don't set it low.
    max_deliveries = 0
    #: Take what stock producers send as well (docs: migration).
    accept_lists = False

    def init_consuming(self) -> None:
        self.lanes = ()
        self._ttl_ms = {}
        self._no_ack: set[str] = set()
        #: queue → consumer tag → what takes its messages; the last one to come does
        self._consumers_of: dict[str | None, dict[str, Any]] = {}
        self._awaited: deque[Answer] = deque()
        self._inbox: deque[tuple[str, dict[str, Any]]] = deque()
        self._found_empty: frozenset[str] = frozenset()  #: queues that the last fetch looked at
        self._answer_lost = False

    # -- consumers

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> Any:
        if no_ack:
            self._no_ack.add(queue)
        else:
            self._no_ack.discard(queue)
        made = super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        # kombu knows one callback per queue of a connection, and so the last channel's alone
        consumers = self._consumers_of.setdefault(queue, {})
        consumers.pop(consumer_tag, None)
        consumers[consumer_tag] = self.connection._callbacks[queue]
        return made

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        cancelled = super()._basic_cancel(consumer_tag)
        consumers = self._consumers_of.get(queue, {})
        consumers.pop(consumer_tag, None)
        if not consumers:
            self._consumers_of.pop(queue, None)
        return cancelled

    @property
    def active_queues(self) -> list[str]:
        """Queues that are consumed, in the order of ``-Q`` (kombu before 5.7: in any)."""
        fanout = self.active_fanout_queues
        return list(dict.fromkeys(name for name in self._active_queues if name not in fanout))

    def _update_queue_cycle(self) -> None:
        super()._update_queue_cycle()
        before, self.lanes = self.lanes, tuple(self.active_queues)
        if set(self.lanes) - set(before):
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        """End a wait that does not know the new queues."""
        waiting = self._awaited[-1] if self._awaited else None
        if isinstance(waiting, BellAnswer):
            queue = waiting.queues[0]
            self.raw.lpush(f"{self.keys.lane(queue)}:bell", 1)

    # -- one turn of the loop

    def turn(self) -> None:
        """Before each poll: send what is to be sent."""
        session = self._session
        if session is not None:
            session.check()
        if self._inbox:
            self._deliver_all()
        if self._in_poll:
            # an answer to a fetch comes at once, and the acks go out with the next one
            if session is not None and session.has_acks and self._is_waiting():
                session.flush()
        elif self.wanted() > 0 or (session is not None and session.has_acks):
            self.connection.cycle._register_BRPOP(self)

    def _is_waiting(self) -> bool:
        return bool(self._awaited) and isinstance(self._awaited[-1], BellAnswer)

    def wanted(self) -> int:
        """How many messages the next fetch may take."""
        qos = self.qos
        if not qos.can_consume():
            return 0
        if qos.is_patched:
            return 1
        free: int | None = qos.free()
        if free is None:
            return self.fetch_limit if self.gathers_acks else 1
        free = max(free - len(self._inbox), 0)
        # Not for every single message that was acked, as long as the pool has some to go on with.
        if free < qos.prefetch_count // 4 and self.gathers_acks and a_task_waits():
            return 0
        return min(free, self.fetch_limit)

    def _brpop_start(self, timeout: float | None = None) -> None:
        session = self._session
        count = self.wanted()
        if count and any(queue not in self._no_ack for queue in self.lanes):
            session = self.join([queue for queue in self.lanes if queue not in self._no_ack])
            if self._answer_lost:
                session.recover()
                self._answer_lost = False
        commands: list[tuple[Any, ...]] = []
        if session is not None and session.has_acks:
            acks = session.take_acks()
            self._awaited.append(AckAnswer(acks))
            commands.append(scripts.ACK.command(*session.ack_call(acks)))
        if count:
            commands += self._fetch_or_wait(session, count, timeout)
        if not commands:
            return
        connection = self.client.connection
        self._in_poll = connection
        self._brpop_sent_at = time.monotonic()
        try:
            connection.send_packed_command(connection.pack_commands(commands))
        except self.connection_errors:
            self._drop_answers()
            connection.disconnect()
            raise

    def _fetch_or_wait(
        self, session: Session | None, count: int, timeout: float | None
    ) -> list[tuple[Any, ...]]:
        queues, chosen = picks.plan(self._queue_cycle, self.lanes, count, self.sep)
        if not queues:
            return []
        if self._found_empty.issuperset(queues):
            if self.accept_lists:
                timeout = min(timeout or self.block_s, ACCEPT_EVERY_S)
            self._awaited.append(BellAnswer(queues))
            bells = [f"{self.keys.lane(queue)}:bell" for queue in queues]
            return [("BLPOP", *bells, min(timeout or self.block_s, self.block_s))]
        commands = self._accept(queues, count) if self.accept_lists else []
        self._awaited.append(FetchAnswer(queues, chosen))
        if session is not None:
            session.asked_at = time.monotonic()
        return [*commands, scripts.FETCH.command(*self._fetch_call(session, queues, chosen))]

    def _accept(self, queues: Sequence[str], count: int) -> list[tuple[Any, ...]]:
        commands = []
        for queue in queues:
            self._awaited.append(AcceptAnswer())
            call = accept_call(self, queue, count)
            commands.append(scripts.ACCEPT.command(*call))
        return commands

    def _fetch_call(
        self, session: Session | None, queues: Sequence[str], chosen: Sequence[int]
    ) -> tuple[list[str], list[scripts.Arg]]:
        keys = [self.keys.leases, *(self.keys.lane(queue) for queue in queues)]
        promises = getattr(self._queue_cycle, "promises_ms", _no_promises)(queues) or ()
        return keys, [
            session.name if session is not None else "",
            self.steps[1],
            ",".join(self.steps),
            ",".join(map(str, chosen)),
            self.max_deliveries,
            "".join("1" if queue in self._no_ack else "0" for queue in queues),
            *promises,
        ]

    # -- answers

    def _brpop_read(self, **options: Any) -> bool:
        connection = self.client.connection
        taken = False
        try:
            while self._awaited:
                if isinstance(self._awaited[0], BellAnswer) and not connection.can_read(timeout=0):
                    break
                taken = self._read_one(connection) or taken
        finally:
            if not self._awaited:
                self._in_poll = None
        if taken:
            self._deliver_some()
            return True
        raise Empty

    def _read_one(self, connection: Any) -> bool:
        try:
            reply = connection.read_response()
        except NoScriptError:
            self._forgotten(self._awaited.popleft())
            return False
        except ResponseError:
            self._give_up(self._awaited.popleft())
            raise
        except self.connection_errors:
            self._drop_answers()
            connection.disconnect()
            raise
        awaited = self._awaited.popleft()
        if isinstance(awaited, AckAnswer):
            self.session.acked(awaited.acks, reply)
            return False
        if isinstance(awaited, BellAnswer):
            self._found_empty = frozenset()
            return False
        if isinstance(awaited, AcceptAnswer):
            return False
        try:
            return self._fetched(awaited, reply)
        finally:
            self._heard()

    def _heard(self) -> None:
        """What the last fetch handed out is known by now, or will be looked for."""
        if self._session is not None:
            self._session.asked_at = None

    def _forgotten(self, awaited: Answer) -> None:
        """The server does not know our scripts (a new one, or restarted)."""
        self._give_up(awaited)
        scripts.load(self.raw, scripts.ACK, scripts.FETCH, scripts.ACCEPT)

    def _give_up(self, awaited: Answer) -> None:
        if isinstance(awaited, AckAnswer) and self._session is not None:
            self._session.put_back(awaited.acks)
        elif isinstance(awaited, FetchAnswer):
            self._heard()

    def _drop_answers(self) -> None:
        """The connection is gone: nobody knows what the server did."""
        while self._awaited:
            awaited = self._awaited.popleft()
            self._give_up(awaited)
            self._answer_lost = self._answer_lost or isinstance(awaited, FetchAnswer)

    def _on_connection_disconnect(self, connection: Any) -> None:
        if self._in_poll is connection:
            self._drop_answers()
        super()._on_connection_disconnect(connection)

    def _fetched(self, asked: FetchAnswer, reply: Sequence[Any]) -> bool:
        if reply[0]:
            self.session.declare_lost()
            raise LeaseOver("the lease of this worker is over")
        taken: dict[int, list[Sequence[Any]]] = {}
        for at in range(1, len(reply), ROW):
            taken.setdefault(reply[at], []).append(reply[at + 1 : at + ROW])
        for lane, row in picks.in_order(asked.picks, taken):
            self._received(asked.queues[lane - 1], row)
        ran_dry = (len(reply) - 1) // ROW < len(asked.picks)
        self._found_empty = frozenset(asked.queues) if ran_dry else frozenset()
        return bool(self._inbox)

    def _received(self, queue: str, row: Sequence[Any]) -> None:
        step, id_, deliveries, _requeues, _since, waited, raw = row
        held = Held(self.keys.lane(queue), step.decode(), id_.decode())
        self._queue_cycle.rotate(queue)
        self._used(queue)
        try:
            payload = self._readable(raw)
        except envelope.Unreadable as error:
            logger.error("a message can't be read and is set aside: %s", error)
            if queue not in self._no_ack:
                scripts.BURY(self.raw, [held.lane], [held.step, held.id, "undecodable"])
            return
        tag = f"{held.id}:{held.step}:{queue}"
        envelope.mark_delivery(payload, tag, int(deliveries), waited=waited == b"1")
        if queue not in self._no_ack:
            self.session.take(tag, held)
        self._inbox.append((queue, payload))

    def _readable(self, raw: bytes) -> dict[str, Any]:
        """The envelope, of which kombu can make a message: where it can't, it would say so in the
        middle of the loop, and end this worker and every next one."""
        payload = envelope.decode(raw)
        body, encoding = payload.get("body"), payload["properties"].get("body_encoding")
        if body and not (encoding == "utf-8" and body.isascii()):
            try:
                self.decode_body(body, encoding)
            except (ValueError, TypeError, AttributeError) as error:
                raise envelope.Unreadable(f"the body: {error}") from error
        return payload

    def _deliver_some(self) -> None:
        """To the consumers: everything in an event loop, else one message per call."""
        if self.gathers_acks:
            self._deliver_all()
        else:
            self._deliver_next()

    def _deliver_all(self) -> None:
        while self._inbox:
            self._deliver_next()

    def _deliver_next(self) -> None:
        queue, payload = self._inbox.popleft()
        if consumers := self._consumers_of.get(queue):
            next(reversed(consumers.values()))(payload)
        else:  # its consumer was cancelled meanwhile
            try:
                self.give_back([payload["properties"]["delivery_tag"]])
            except Exception:
                self._inbox.appendleft((queue, payload))  # it is held yet
                raise

    def _used(self, queue: str) -> None:
        """A message of this queue was taken."""

    # -- without an event loop

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        session = None if queue in self._no_ack else self.join([queue])
        reply = scripts.FETCH(self.raw, *self._fetch_call(session, [queue], [1]))
        before = len(self._inbox)
        self._fetched(FetchAnswer([queue], [1]), reply)
        self._found_empty = frozenset()
        if len(self._inbox) == before:
            raise Empty
        return self._inbox.pop()[1]

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        known = queue in self._no_ack
        if no_ack:
            self._no_ack.add(queue)
        try:
            return super().basic_get(queue, no_ack=no_ack, **kwargs)
        finally:
            if no_ack and not known:
                self._no_ack.discard(queue)

    # -- the end

    def close(self) -> None:
        """Give everything unacked back. A wait or an answer on its way is not waited for."""
        self._in_poll = None
        self._drop_answers()
        try:
            super().close()
        finally:
            # kombu may have failed on the way, to delete a queue over a connection that is gone
            self.end_session()
