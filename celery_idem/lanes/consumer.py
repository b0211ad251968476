"""The worker's side of lanes: what is received waits in one line, and free processes are filled
from it by the order. One path for every pool and broker; what a broker adds is in
``kombu_order.py`` (Redis) and ``amqp.py`` (RabbitMQ)."""

from __future__ import annotations

import logging
import random
import time
import weakref
from collections import deque
from collections.abc import Callable, Set
from typing import Any

from celery import bootsteps, signals
from celery.worker import state

from celery_idem.core.line import Line
from celery_idem.core.order import DeadlineOrder, Lane, make_order
from celery_idem.core.settings import Settings
from celery_idem.lanes.amqp import AmqpFetch
from celery_idem.lanes.kombu_order import RedisFetch
from celery_idem.lanes.pool import (
    HubWaker,
    Running,
    ack_at_once,
    is_lost,
    stop_asking_at_once,
    waits_for_threads,
    watch_pool,
)
from celery_idem.lanes.routing import lanes_of, sent_s
from celery_idem.lanes.tally import Tally

logger = logging.getLogger("celery_idem.lanes")

#: Delayed and rate-limited messages of one lane that a worker holds at most, unless
#: ``worker_eta_task_limit`` says otherwise. A lane that is full of them is not fetched from;
#: the other lanes are.
PARKED_MAX = 10_000
#: Seconds between two looks at what no event reports (a task revoked while it waited).
SWEEP_S = 0.5
#: How far one job moves the average run time.
RUN_TIME_GAIN = 0.05

_LANE = "_idem_lane"


class WorkerLanes:
    """Lanes of one running consumer, as ``consumer.idem_lanes``."""

    def __init__(self, consumer: Any, settings: Settings) -> None:
        self.consumer = consumer
        self._configured = {lane.queue: lane for lane in lanes_of(settings)}
        # all lanes, those too that this worker does not consume: one setting is right or wrong
        make_order(settings.lane_order, lanes_of(settings), charge=settings.charge)
        lanes = self._consumed_lanes()
        # Redis charges what it fetched; where the broker pushes, what is started is charged
        self.fetches = consumer.app.connection_for_read().transport.driver_type == "redis"
        order = make_order(settings.lane_order, lanes, charge=settings.charge, rng=random.Random())
        self.line: Line[Any] = Line(
            lanes,
            order,
            slots=self.slots,
            fetched=self.fetches,
            ranked=[lane.name for lane in self._configured.values()],
        )
        self.settings = settings
        self.tally = Tally()
        self.fetch: RedisFetch | AmqpFetch | None = None
        self.run_time_s: float | None = None  #: of a job, on average of the recent ones
        self._lane_of: dict[str, str] = {}
        self._running: dict[int, Running] = {}
        self._done: deque[Running] = deque()  # ended in threads, and not yet noted
        self._incoming: Any = None  # received, and not yet known to be delayed
        self._parked: dict[str, weakref.WeakSet[Any]] = {}
        limit = consumer.app.conf.get("worker_eta_task_limit")
        self.parked_max = PARKED_MAX if limit is None else max(int(limit), 1)
        self._ages = isinstance(order, DeadlineOrder)
        self._put_aside = 0  # what is parked, or was settled without running
        self._pumping = False
        self._room: Set[str] = frozenset()
        self._room_at = -1  # version of the line
        self._hand_on: Callable[[Any], Any] = consumer.on_task_request
        consumer.on_task_request = self.submit

    def _consumed_lanes(self) -> list[Lane]:
        consumed = self.consumer.app.amqp.queues.consume_from
        return [lane for queue, lane in self._configured.items() if queue in consumed]

    @property
    def slots(self) -> int:
        """Processes, threads or greenlets; with autoscale, those that there can be."""
        worker = self.consumer.controller
        scaler = getattr(worker, "autoscaler", None)
        if scaler is not None:
            return int(scaler.max_concurrency)
        pool = self.consumer.pool
        if getattr(pool, "is_green", False):
            # num_processes of gevent's pool in Celery 5.5 are those that are busy
            return int(pool.limit if pool._pool is None else pool._pool.size)
        try:
            return int(pool.num_processes or 1)
        except AttributeError:  # the prefork pool has not been started yet
            return int(worker.max_concurrency or worker.concurrency)

    def lane_of_queue(self, queue: str) -> str:
        """The lane of this queue; one that is no lane becomes one of weight 1, ranked last."""
        known = self._lane_of.get(queue)
        if known is None:
            lane = self._configured.get(queue)
            if lane is None and self._configured:
                logger.warning(
                    "queue %r is no lane: it is served as one of weight 1, ranked last. "
                    "Lanes are %s",
                    queue,
                    ", ".join(sorted(self._configured)),
                )
            self.line.admit(lane or queue)
            known = self._lane_of[queue] = lane.name if lane else queue
        return known

    # -- from the broker to the line

    def received(self, request: Any) -> None:
        """A message has come: note its lane, before Celery delays it or limits its rate."""
        if self._incoming is not None:
            self._park()
        queue = self.fetch.queue_of(request) if self.fetch is not None else None
        if queue is None:
            queue = (request.delivery_info or {}).get("routing_key") or "celery"
        lane = self._lane_of.get(queue) or self.lane_of_queue(queue)
        setattr(request, _LANE, lane)
        self._incoming = request
        if self.fetches and self._ages:
            self.line.order.head(lane, _sent_s(request))
        if self.fetch is not None:
            self.fetch.received(lane)

    def _park(self) -> None:
        """What was received last did not come on at once: it is delayed, or limited in rate."""
        request, self._incoming = self._incoming, None
        self._parked.setdefault(getattr(request, _LANE), weakref.WeakSet()).add(request)
        self._put_aside += 1
        self.line.version += 1

    def submit(self, request: Any) -> None:
        """In place of ``Consumer.on_task_request``: the request may run, by the order."""
        lane = getattr(request, _LANE, None) or self.lane_of_queue("celery")
        if request is self._incoming:
            self._incoming = None
        else:
            self._parked.get(lane, set()).discard(request)
            self._put_aside -= 1
        self.line.add(lane, request)
        self.pump()

    def parked(self, lane: str) -> int:
        """Messages of the lane that are here but delayed or limited in rate."""
        return len(self._parked.get(lane, ()))

    def room(self) -> Set[str]:
        """Lanes whose next message could start at once, and that hold few delayed ones."""
        if self._incoming is not None:
            self._park()
        if self._room_at != self.line.version:
            self._room = self.line.fetchable()
            limit = self.parked_max
            if self._put_aside >= limit:  # else no lane can hold so many
                self._room = {it for it in self._room if self.parked(it) < limit}
            self._room_at = self.line.version
        return self._room

    # -- from the line to the pool

    def pump(self) -> None:
        """Start all that may start now."""
        if self._pumping or (self.fetch is not None and not self.fetch.may_pump()):
            return
        self._pumping = True
        try:
            while self.line.count and (chosen := self._next()) is not None:
                self._start(*chosen)
                if self.fetch is not None and not self.fetch.may_pump():
                    break
        finally:
            self._pumping = False
        if self.fetch is not None:
            self.fetch.offer_again()

    def _next(self) -> tuple[str, Any] | None:
        if self._ages and not self.fetches:
            for lane in self.line.lanes:
                first = self.line.first(lane.name)
                if first is not None:
                    self.line.order.head(lane.name, _sent_s(first))
        return self.line.next(time.time())

    def _start(self, lane: str, request: Any) -> None:
        entry = Running(request, lane)
        self._running[id(request)] = entry
        self.tally.started(lane)
        try:
            accepted = self._hand_on(request)
        except BaseException:
            self._end(entry, ran=False)
            raise
        if accepted is not False and not entry.applied:
            self._end(entry, ran=False)  # revoked: Celery has settled it without running it
        if self.fetch is not None:
            self.fetch.started()

    def applying(self, request: Any) -> Running | None:
        """The pool gets this request now; ``None`` when it did not come through the line."""
        entry = self._running.get(id(request))
        if entry is not None:
            entry.applied = True
        return entry

    def ended(self, entry: Running) -> None:
        """The pool is done with it, in whatever way."""
        if self._end(entry, ran=True):
            self.pump()

    def ended_elsewhere(self, entry: Running) -> None:
        """The same from another thread: noted at the next :meth:`note_ends`, in the event loop."""
        self._done.append(entry)

    def note_ends(self) -> None:
        """All ends of other threads, and only then new starts: where one of these fails, the loop
        drops what else it was to call."""
        if self._end_done():
            self.pump()

    def _end_done(self) -> bool:
        ended = False
        while self._done:
            ended = self._end(self._done.popleft(), ran=True) or ended
        return ended

    def _end(self, entry: Running, *, ran: bool) -> bool:
        if self._running.pop(id(entry.request), None) is None:
            return False
        run_time_s = time.monotonic() - entry.started_s if ran else 0.0
        self.line.finished(entry.lane, run_time_s)
        self.tally.ended(entry.lane, run_time_s)
        if self.fetch is not None:
            self.fetch.note_room()
        if ran:
            known = run_time_s if self.run_time_s is None else self.run_time_s
            self.run_time_s = known + RUN_TIME_GAIN * (run_time_s - known)
        return True

    def sweep(self) -> None:
        """Forget what was revoked while it waited for a process, follow the pool's size, and look
        at the line again."""
        for entry in list(self._running.values()):
            if not entry.applied and entry.request not in state.reserved_requests:
                self._end(entry, ran=False)
        self.forget_lost()
        self._end_done()
        self.line.slots = self.slots
        self.line.version += 1
        if self.fetch is not None:
            self.fetch.sweep()
        self.pump()

    def forget_waiting(self) -> None:
        """The connection is gone, and with it the right to run what waits: it comes again."""
        self.line.drain()

    def forget_lost(self) -> None:
        """Free the places of what the pool has dropped: after a lost connection, it does."""
        children = getattr(self.consumer.pool, "_pool", None)
        for entry in list(self._running.values()):
            if entry.applied and is_lost(entry.job, children):
                self._end(entry, ran=False)

    # -- for people

    def report(self) -> dict[str, Any]:
        """What ``inspect lanes`` answers."""
        served, seconds = self.tally.last_minute()
        return {
            "order": self.settings.lane_order,
            "charge": self.settings.charge,
            "slots": self.slots,
            "broker": "fetch" if self.fetches else "push",
            "lanes": {
                lane.name: {
                    "queue": lane.queue,
                    "weight": lane.weight,
                    "reserve": lane.reserve,
                    "deadline_s": lane.deadline_s,
                    "paused": lane.name in self.line.paused,
                    "paused_for": self.line.paused.get(lane.name, ""),
                    "running": self.line.running[lane.name],
                    "waiting": self.line.waiting(lane.name),
                    "delayed": self.parked(lane.name),
                    "started": self.line.started[lane.name],
                    "started_last_minute": served[lane.name],
                    "seconds_last_minute": round(seconds[lane.name], 3),
                }
                for lane in self.line.lanes
            },
        }

    def changed(self) -> None:
        """A weight or a pause was changed from outside: act on it now."""
        self.pump()


class LaneStep(bootsteps.StartStopStep):
    """Consumer bootstep: does nothing for an app without lanes."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        from celery_idem.binding import binding_of

        consumer.idem_lanes = None
        settings = binding_of(consumer.app).settings
        if not settings.lanes:
            return
        lanes = WorkerLanes(consumer, settings)
        consumer.idem_lanes = lanes
        _check_reserves(lanes)
        self._waker = HubWaker(consumer.hub) if waits_for_threads(consumer) else None
        watch_pool(consumer, lanes, self._waker)
        ack_at_once(consumer)
        if lanes.fetches:
            _say_what_is_replaced(consumer.app)
        stop_asking_at_once(consumer, lanes)
        self._receiver = _receiver(lanes)
        signals.task_received.connect(self._receiver, sender=consumer, weak=False)

    def start(self, consumer: Any) -> None:
        lanes: WorkerLanes | None = consumer.idem_lanes
        if lanes is None:
            return
        lanes.forget_waiting()
        lanes.forget_lost()
        lanes.line.slots = lanes.slots
        driver = consumer.connection.transport.driver_type
        if driver == "redis":
            lanes.fetch = RedisFetch(lanes, consumer.task_consumer.channel, consumer.hub)
        elif driver == "amqp":
            lanes.fetch = AmqpFetch(consumer, lanes)
        if self._waker is not None:
            self._waker.listen()
        self._timer = consumer.timer.call_repeatedly(SWEEP_S, lanes.sweep)

    def stop(self, consumer: Any) -> None:
        lanes: WorkerLanes | None = consumer.idem_lanes
        if lanes is not None:
            timer = getattr(self, "_timer", None)
            if timer is not None:
                timer.cancel()
            lanes.fetch = None
            lanes.forget_waiting()

    shutdown = stop


def _check_reserves(lanes: WorkerLanes) -> None:
    reserved = sum(lane.reserve for lane in lanes.line.lanes[:-1])
    if reserved >= lanes.slots and reserved:
        logger.warning(
            "lanes reserve %d processes and this worker has %d: lanes ranked below keep one. "
            "Raise the concurrency, or lower the reserves",
            reserved,
            lanes.slots,
        )


def _receiver(lanes: WorkerLanes) -> Callable[..., None]:
    def on_received(request: Any = None, **_: Any) -> None:
        lanes.received(request)

    return on_received


def _say_what_is_replaced(app: Any) -> None:
    given = (app.conf.broker_transport_options or {}).get("queue_order_strategy")
    if given is not None:
        logger.warning("queue_order_strategy %r is replaced: this worker serves lanes", given)


def _sent_s(request: Any) -> float:
    sent = sent_s(request.request_dict)
    return time.time() if sent is None else sent
