"""RabbitMQ: the broker pushes, so each lane has a window of its own, and the line chooses.

With one prefetch for all queues, the broker decides the mix (32:34:33 whatever the weights). With
a window per lane, some messages of every lane wait here, and the order picks among them.

How many: a window is the processes plus a look-ahead, because what runs counts in the window of
its lane: were all processes busy with critical work and the window no larger, the next critical
message would not be here when a process gets free, and its turn would go to another lane.

For how long: what waits here can't be run by another worker. So when a lane could start nothing
for a second, its tap is closed: the consumer is cancelled, and what waits goes back to the queue,
where an idle worker gets it. The tap is opened again when a process is free for the lane. A busy
worker thus holds nothing, however long its jobs are, and a fast one always has enough to choose
from.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.worker import state
from kombu.common import QoS

if TYPE_CHECKING:
    from celery_idem.lanes.consumer import WorkerLanes

logger = logging.getLogger("celery_idem.lanes")

#: Seconds of work that may wait here per lane: the time from an ack to the next message, with
#: room for a broker that pauses or is far away: what is not here in time gives its turn to a lane
#: below.
AHEAD_S = 0.2
#: Messages of a lane that may wait here besides as many as there are processes.
LEAST_AHEAD, MOST_AHEAD = 2, 100
#: The same until the first jobs have ended and their length is known.
FIRST_AHEAD = 32
#: Seconds without a free process after which a lane's messages go back to the queue.
HOLD_S = 1.0
#: Seconds that the first choice waits after a tap was opened, so that every lane's messages are
#: here to be chosen from.
GATHER_S = 0.02
#: The same after each job of the solo pool, which reads nothing while it runs.
SOLO_GATHER_S = 0.002
#: A quorum queue counts what is given back, and drops a message at its delivery limit (20 by
#: default from RabbitMQ 4): a message that came back so often stays here.
MOST_RETURNS = 3


def window_of(slots: int, run_time_s: float | None) -> int:
    """Unacknowledged messages of one lane that a worker of so many processes may hold, when its
    jobs take so long on average.

    >>> window_of(4, 0.005), window_of(4, 2.0)
    (104, 6)
    """
    if run_time_s is None:
        return slots + FIRST_AHEAD
    ahead = math.ceil(slots / max(run_time_s, 1e-4) * AHEAD_S)
    return slots + min(max(ahead, LEAST_AHEAD), MOST_AHEAD)


class AmqpFetch:
    """The windows and taps of one consuming channel, until it is closed."""

    def __init__(self, consumer: Any, worker: WorkerLanes) -> None:
        self._consumer = consumer
        self._worker = worker
        self._channel = consumer.task_consumer.channel
        self._solo = type(consumer.pool).__module__.endswith("solo")
        self._slots = worker.slots
        self._window = self._wanted()
        self._queue_of_tag: dict[str, str] = {}
        self._closed: dict[str, Any] = {}  # lane: its kombu queue
        self._parked_at: dict[str, int] = {}
        self._due: set[str] = set()
        self._hold_until_s = 0.0
        self._room_since_s: dict[str, float] = {}
        self._set_window()
        consumer.qos_global = False
        # Celery's own would set one window for the whole channel
        consumer.qos = QoS(lambda prefetch_count: None, self._window)
        self._gather(GATHER_S)

    def _wanted(self) -> int:
        """The window by run times, but no more delayed messages than the worker may hold; as many
        as there are processes in any case, or some would be idle."""
        slots = self._worker.slots
        window = window_of(slots, self._worker.run_time_s)
        return min(window, max(self._worker.parked_max, slots))

    def _set_window(self) -> None:
        """For consumers that start from now on (``global`` off is per consumer in RabbitMQ)."""
        self._channel.basic_qos(0, self._window, False)

    # -- what WorkerLanes asks

    def queue_of(self, request: Any) -> str | None:
        """The queue whose consumer this request came by; cancelled consumers are remembered."""
        tag = (request.delivery_info or {}).get("consumer_tag")
        if tag is None:
            return None
        queue = self._queue_of_tag.get(tag)
        if queue is None:
            self._learn_tags()
            queue = self._queue_of_tag.get(tag)
        return queue

    def may_pump(self) -> bool:
        """Whether messages have had the time to arrive."""
        return time.monotonic() >= self._hold_until_s

    def offer_again(self) -> None:
        """After starts and ends: open the taps of lanes that may start something again."""
        self.note_room()
        if any(self._worker.line.has_room(lane) for lane in self._closed):
            self._now("open", self._open)
        for lane in list(self._parked_at):
            self._parked_at[lane] = min(self._parked_at[lane], self._worker.parked(lane))

    def received(self, lane: str) -> None:
        """A delayed or limited message keeps its place in the window until it runs. When they
        fill half of it, a new consumer starts with an empty window: so they block nobody."""
        parked = self._worker.parked(lane)
        fresh = parked - self._parked_at.get(lane, 0)
        if fresh < max(1, self._window // 2):
            return
        # the rest of the old window may be on its way, and a whole new one comes
        if parked + 2 * self._window > self._worker.parked_max:
            return
        self._soon("recycle", self._recycle, lane)

    def started(self) -> None:
        """The solo pool ran a job and read nothing meanwhile: read before the next choice."""
        if self._solo:
            self._gather(SOLO_GATHER_S)

    def sweep(self) -> None:
        """Close the taps of lanes without room, and follow the pool's size."""
        now_s = time.monotonic()
        self.note_room()
        wanted = self._wanted()
        # a small difference is not worth new consumers
        if self._slots != self._worker.slots or not self._window / 2 < wanted <= self._window * 1.5:
            self._now("resize", self._resize)
        for lane in self._worker.line.lanes:
            paused = lane.name in self._worker.line.paused
            if lane.name in self._closed:
                continue
            if paused or now_s - self._room_since_s.get(lane.name, now_s) > HOLD_S:
                self._now(f"close {lane.name}", self._close, lane.name, lane.queue)
        self.offer_again()

    # -- room

    def note_room(self) -> None:
        """Asked when a job has ended, before its process is taken again."""
        now_s = time.monotonic()
        for lane in self._worker.line.lanes:
            if self._worker.line.has_room(lane.name):
                self._room_since_s[lane.name] = now_s
            else:
                self._room_since_s.setdefault(lane.name, now_s)

    # -- taps

    def _now(self, what: str, act: Callable[..., None], *args: Any) -> None:
        """Talk to the broker: at once in an event loop, else from the consumer's own greenlet
        (the client can't wait for two answers at a time)."""
        if self._consumer.hub is not None:
            act(*args)
        else:
            self._soon(what, act, *args)

    def _soon(self, what: str, act: Callable[..., None], *args: Any) -> None:
        what = " ".join((what, *map(str, args)))
        if what in self._due:
            return
        self._due.add(what)

        def run() -> None:
            self._due.discard(what)
            if self._worker.fetch is self:  # else the connection is another one by now
                act(*args)

        self._consumer.call_soon(run)

    def _gather(self, delay_s: float) -> None:
        self._hold_until_s = time.monotonic() + delay_s
        # a little later than that, so that the clock has passed it
        self._consumer.timer.call_after(delay_s + 0.001, self._worker.pump)

    def _learn_tags(self) -> None:
        for queue, tag in self._consumer.task_consumer._active_tags.items():
            self._queue_of_tag[tag] = queue

    def _cancel(self, queue: str) -> Any:
        """Cancel its consumer; the kombu queue, or ``None`` where none is consumed."""
        tasks = self._consumer.task_consumer
        if not tasks.consuming_from(queue):
            return None
        self._learn_tags()
        found = tasks._queues.get(queue)
        tasks.cancel_by_queue(queue)
        return found

    def _consume(self, queues: list[Any]) -> None:
        tasks = self._consumer.task_consumer
        self._set_window()
        for queue in queues:
            tasks._queues[queue.name] = queue  # add_queue would declare it once more
        tasks.consume()
        self._learn_tags()

    def _close(self, lane: str, queue: str) -> None:
        if self._worker.line.has_room(lane):
            return  # it has got some since
        found = self._cancel(queue)
        if found is None:
            return
        self._closed[lane] = found
        returned = 0
        for request in self._worker.line.drain(lane):
            if _returns(request) >= MOST_RETURNS:
                self._worker.line.add(lane, request)
                continue
            request.reject(requeue=True)
            state.task_ready(request)
            returned += 1
        logger.debug("lane %s: tap closed, %d messages given back", lane, returned)

    def _open(self) -> None:
        lanes = [lane for lane in self._closed if self._worker.line.has_room(lane)]
        if self._consumer.task_consumer is None or not lanes:
            return
        now_s = time.monotonic()
        # not those that somebody has cancelled meanwhile (control.cancel_consumer)
        consumed = self._consumer.app.amqp.queues.consume_from
        queues = [self._closed.pop(lane) for lane in lanes]
        self._consume([queue for queue in queues if queue.name in consumed])
        for lane in lanes:
            self._room_since_s[lane] = now_s
        self._gather(GATHER_S)

    def _recycle(self, lane: str) -> None:
        if lane in self._closed or self._consumer.task_consumer is None:
            return
        queue = next((known.queue for known in self._worker.line.lanes if known.name == lane), None)
        found = self._cancel(queue) if queue else None
        if found is not None:
            self._parked_at[lane] = self._worker.parked(lane)
            self._consume([found])

    def _resize(self) -> None:
        """Windows are set when a consumer starts, so start all anew."""
        self._slots = self._worker.slots
        self._window = self._wanted()
        found = [self._cancel(lane.queue) for lane in self._worker.line.lanes]
        self._consume([queue for queue in found if queue is not None])


def _returns(request: Any) -> int:
    """How often a quorum queue has delivered this message before; 0 for classic queues."""
    count = (request.request_dict or {}).get("x-delivery-count")
    return count if isinstance(count, int) else 0
