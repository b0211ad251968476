"""Redis: the order in which queues are offered to the server, in place of kombu's
``queue_order_strategy``.

kombu's Redis transport asks for one message at a time (``BRPOP key key …``): the server answers
from the first key that has one. So the order decides, and the answer says which lanes before it
were empty. What else it takes is put around the consuming channel by :class:`RedisFetch`:

* a lane's priorities come before the next lane (kombu: priority first, then queue);
* a message is only asked for while a process is free to run it, whatever the prefetch
  multiplier: what waits in a worker has lost its place in the order, and no other worker can run
  it;
* lanes that may not take a reserved process, and paused ones, are not offered.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Set
from typing import Any, Protocol

from kombu.transport import redis as kombu_redis

from celery_idem.core.line import Line
from celery_idem.core.order import DeadlineOrder

logger = logging.getLogger("celery_idem.lanes")

#: Longest wait of a BRPOP that does not offer every lane, in seconds: after it, the offer is
#: looked at anew even if the server would not let us end it early (an ACL without CLIENT).
RESTRICTED_WAIT_S = 1
#: How long kombu before 5.6 waits in a BRPOP, in seconds.
STOCK_WAIT_S = 1


#: Different offers whose bytes are kept: every order of five lanes, with and without a reserve.
MOST_PACKED = 256


class Worker(Protocol):
    """What the order needs to know of the worker that it serves."""

    line: Line[Any]

    def lane_of_queue(self, queue: str) -> str:
        """The lane that this queue belongs to; a queue that is no lane becomes one of its own."""

    def room(self) -> Set[str]:
        """Lanes that may have one more message here."""


class LaneCycle:
    """kombu's cycle protocol: ``update(queues)``, ``consume(n)``, ``rotate(last_used)``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._queue_of: dict[str, str] = {}
        self.offered: list[str] = []
        self.last_queue: str | None = None
        self.answered = True

    def update(self, queues: Iterable[str]) -> None:
        """The queues that are consumed from now on. Their order does not matter."""
        self._queue_of = {self._worker.lane_of_queue(queue): queue for queue in sorted(queues)}

    def consume(self, n: int) -> list[str]:
        """At most ``n`` queues, the one to take from first in front."""
        return [self._queue_of[lane] for lane in self.offer()[:n]]

    def offer(self) -> list[str]:
        """Lanes to take from, the first in front."""
        lanes = self.lanes()
        order = self._worker.line.order.preference(time.time())
        self.offered = order if len(order) == len(lanes) else [it for it in order if it in lanes]
        return self.offered

    def lanes(self) -> Set[str]:
        """Lanes of the consumed queues that may have a message now."""
        return self._worker.room() & self._queue_of.keys()

    def has_lanes(self) -> bool:
        """Whether there is any of them."""
        return not self._worker.room().isdisjoint(self._queue_of)

    @property
    def restricted(self) -> bool:
        """Whether a reserve or a pause may keep a lane from being offered."""
        return self._worker.line.restricted

    def promises_ms(self, queues: Iterable[str]) -> list[int] | None:
        """Each queue's promise, for a broker that looks at its oldest messages itself.

        ``None`` in orders that are not by deadline.
        """
        line = self._worker.line
        if not isinstance(line.order, DeadlineOrder):
            return None
        promise_s = {lane.name: lane.deadline_s or 0.0 for lane in line.lanes}
        return [int(promise_s[self._worker.lane_of_queue(queue)] * 1000) for queue in queues]

    def rotate(self, last_used: str) -> str:
        """A message of this queue came: those offered before it were empty."""
        self.last_queue = last_used
        self.answered = True
        taken = self._worker.lane_of_queue(last_used)
        line, offered = self._worker.line, self.offered
        if len(offered) == len(line.lanes) and offered[0] == taken:
            line.order.took(taken)
            return last_used
        # those offered after it may have had something; nobody knows
        behind = offered[offered.index(taken) :] if taken in offered else [taken]
        line.order.took(taken, [it.name for it in line.lanes if it.name not in behind])
        return last_used


class RedisFetch:
    """Around one consuming channel of kombu's Redis transport, until it is closed."""

    def __init__(self, worker: Worker, channel: Any, hub: Any) -> None:
        self._channel = channel
        self._hub = hub
        # of this channel only: others of this process read replies, and those are no lanes
        self._cycle = channel._queue_cycle = LaneCycle(worker)
        self._cycle.update(channel.active_queues)
        self._start: Callable[[Any], Any] = channel._brpop_start
        self._steps = list(channel.priority_steps)
        # a transport option since kombu 5.6
        self._wait_s: float = getattr(channel, "brpop_timeout", STOCK_WAIT_S)
        # another transport on top of kombu's takes its messages in a way of its own
        stock: Any = kombu_redis.Channel
        self._direct = type(channel)._brpop_start is stock._brpop_start
        self._keys: dict[str, list[str]] = {}
        self._packed: dict[tuple[Any, ...], Any] = {}
        self._client_id: tuple[int, int | None] = (0, None)  # of which socket, and the id
        channel._brpop_start = self.brpop_start
        channel.qos.can_consume = self.can_consume
        self._client: Any = None
        self._make_client: Callable[..., Any] = channel._create_client
        channel._create_client = self._one_client

    def _one_client(self, asynchronous: bool = False) -> Any:
        """kombu's, made once for each pool of connections: it makes one for every message that it
        notes or acks, which takes a fifth of its time. A client on a pool keeps no state, and what
        is asked by it may come from several threads."""
        if asynchronous:  # that of the BRPOP, which kombu keeps
            return self._make_client(asynchronous=True)
        client = self._client
        if client is None or client.connection_pool is not self._channel.pool:
            client = self._client = self._make_client()
        return client

    def queue_of(self, request: Any) -> str | None:
        """The queue that this request, the latest, came from; a broadcast came by no BRPOP."""
        exchange = (request.delivery_info or {}).get("exchange")
        by_broadcast: str | None = self._channel._fanout_to_queue.get(exchange)
        return by_broadcast or self._cycle.last_queue

    def may_pump(self) -> bool:
        """Always: what is fetched was chosen already."""
        return True

    def received(self, lane: str) -> None:
        """Nothing is held here that could grow."""

    def started(self) -> None:
        """The next message is asked for when the event loop comes round."""

    def note_room(self) -> None:
        """It shows when the event loop asks."""

    def sweep(self) -> None:
        """Nothing is held here that could grow old."""

    def can_consume(self) -> bool:
        """In place of the prefetch count: whether any lane's next message could start now.

        An answer that is awaited is read in any case: unread, what it brings would be popped from
        its list and not yet noted as unacked, and no other worker would ever get it.
        """
        return self._cycle.has_lanes() or bool(self._channel._in_poll and not self._cycle.answered)

    def brpop_start(self, timeout: float | None = None) -> None:
        """kombu's, with the keys in our order: lane by lane, and in a lane by priority."""
        self._learn_client_id()
        wait_s = self._wait_s if timeout is None else timeout
        if self._cycle.restricted:
            wait_s = min(wait_s or RESTRICTED_WAIT_S, RESTRICTED_WAIT_S)
        self._cycle.answered = False
        if self._direct:
            self._ask(wait_s)
        else:
            self._ask_by_channel(wait_s)

    def _ask(self, wait_s: float) -> None:
        """What kombu 5.5 to 5.7 do in ``Channel._brpop_start``, with bytes that are made once."""
        offered = self._cycle.offer()
        if not offered:
            return
        channel = self._channel
        connection = channel.client.connection
        key = (wait_s, *offered)
        packed = self._packed.get(key)
        if packed is None:
            if len(self._packed) >= MOST_PACKED:
                self._packed.clear()
            packed = self._packed[key] = connection.pack_command(*self._command(offered, wait_s))
        channel._in_poll = connection
        channel._brpop_sent_at = time.monotonic()
        connection.send_packed_command(packed)

    def _command(self, offered: list[str], wait_s: float) -> list[Any]:
        channel, queue_of = self._channel, self._cycle._queue_of
        keys = [key for lane in offered for key in self._keys_of(queue_of[lane])]
        command = ["BRPOP", *keys, wait_s or 0]
        if channel.global_keyprefix:
            command = channel.client._prefix_args(command)
        return command

    def _ask_by_channel(self, wait_s: float) -> None:
        channel = self._channel
        steps = channel.priority_steps
        cycle, channel._queue_cycle = channel._queue_cycle, self
        channel.priority_steps = [0]
        try:
            self._start(wait_s)
        finally:
            channel.priority_steps = steps
            channel._queue_cycle = cycle

    def consume(self, n: int) -> list[str]:
        """In place of the cycle's while a channel asks: whole keys, every priority of a lane
        before the next lane."""
        return [key for queue in self._cycle.consume(n) for key in self._keys_of(queue)]

    def promises_ms(self, queues: Iterable[str]) -> list[int] | None:
        """The cycle's."""
        return self._cycle.promises_ms(queues)

    def _keys_of(self, queue: str) -> list[str]:
        keys = self._keys.get(queue)
        if keys is None:
            # _q_for_pri rounds down to the channel's steps, which are [0] while it asks
            channel = self._channel
            before, channel.priority_steps = channel.priority_steps, self._steps
            keys = self._keys[queue] = [channel._q_for_pri(queue, it) for it in self._steps]
            channel.priority_steps = before
        return keys

    def offer_again(self) -> None:
        """Ask at once when nothing is asked; end a BRPOP that offers other lanes than it should,
        or any where none should be: what came would wait here, behind a pause or a long job.

        The server ends it (CLIENT UNBLOCK): the answer is either a message or nothing, so none
        can be lost between the two.
        """
        channel = self._channel
        if not channel._in_poll:
            if not self._hub and self._cycle.has_lanes():
                # without an event loop the consumer may be asleep until its poll times out; the
                # answer to this will wake it
                channel.connection.cycle._register_BRPOP(channel)
            return
        if self._cycle.answered:
            return
        if self._cycle.lanes() == set(self._cycle.offered):
            return
        _, client_id = self._client_id
        if client_id is None:
            return  # no right to CLIENT ID: it ends by its timeout
        with contextlib.suppress(Exception), channel.conn_or_acquire() as client:
            client.client_unblock(client_id)

    def _learn_client_id(self) -> None:
        connection = self._channel.client.connection
        if connection._sock is not None and self._client_id[0] == id(connection._sock):
            return
        connection.connect()
        socket = id(connection._sock)
        self._client_id = (socket, None)
        try:
            connection.send_command("CLIENT", "ID")
            self._client_id = (socket, int(connection.read_response()))
        except self._channel.ResponseError as error:
            logger.info("CLIENT ID is refused (%s): lanes are offered anew every second", error)
