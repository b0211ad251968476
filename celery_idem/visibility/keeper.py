"""The keeper: one daemon thread per worker process and broker.

It renews the leases of this process's holders, takes over from holders that are dead, and says
later what could not be said during an outage. It has connections of its own.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import redis
from celery.utils.dispatch import Signal

from celery_idem.stores.redis.scripts import ScriptRunner, is_transient
from celery_idem.visibility.holder import Holder
from celery_idem.visibility.ledger import ASIDE, Ledger, Redelivery, dropped
from celery_idem.visibility.routes import Routes

logger = logging.getLogger("celery_idem.visibility")

#: Sent once when this process learns that its deliveries were given to others (it was paused
#: longer than the lease, or Redis lost its data). Receivers get ``sender`` (the keeper) and
#: ``messages`` (kombu messages that were open), in the keeper's or in the consumer's thread.
holder_lost = Signal(name="idem_holder_lost")

#: Deliveries that one call puts back at most, and their scores that one call refreshes.
BATCH = 100
#: Pause after a failed look, in seconds (never more than a tick).
RETRY_PAUSE_S = 0.5
#: Long held deliveries are looked for this often in a horizon.
REFRESHES_PER_HORIZON = 24


class Keeper:
    """``open_channel`` returns a new kombu Redis channel for this broker that nobody else uses;
    ``running`` the delivery tags that tasks of this process work on now; ``stopping`` says whether
    the worker is about to end."""

    def __init__(
        self,
        ledger: Ledger,
        open_channel: Callable[[], Any],
        running: Callable[[], Collection[str]],
        stopping: Callable[[], bool],
    ) -> None:
        self.ledger = ledger
        self.running = running
        self.stopping = stopping
        self._open_channel = open_channel
        self._opening = threading.Lock()
        self._channel: Any = None
        self._client: redis.Redis | None = None
        self._holders: list[Holder] = []
        self._later: deque[Callable[[], None]] = deque()
        self._taken: deque[str] = deque()
        self._tick_due = 0.0
        self._refresh_due = self._after(ledger.times.horizon_s / REFRESHES_PER_HORIZON)
        self._failing = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    # -- for the consumer's thread

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="idem-visibility", daemon=True)
            self._thread.start()

    def new_holder(self) -> Holder:
        """A holder whose deliveries are kept from its first record on."""
        holder = Holder()
        self._holders = [h for h in self._holders if not h.closed or h.open] + [holder]
        return holder

    def give_back(
        self,
        holder: Holder,
        tags: Collection[str],
        *,
        front: bool | None,
        retire: bool = False,
    ) -> None:
        """Put these messages back on their queues now; later, if the server can't be reached.

        ``front``: next to be popped, or behind all that waits; None: as :class:`Routes` decides.
        ``retire``: forget the holder, if it holds nothing then.
        """
        youngest_first = sorted(tags, reverse=True)
        self._now_or_later(lambda: self._give_back(holder, youngest_first, front, retire))

    def put_back_later(self, holder: Holder, tag: str, record: str) -> None:
        """A message was popped and could not be recorded: record it and put it back."""

        def put_back() -> None:
            self.ledger.hold(self._scripts(), holder.id, tag, record)
            self._give_back(holder, [tag], True, False)

        self._do_later(put_back)

    @property
    def busy(self) -> bool:
        """Whether something waits to be said: the server is away, so it is no use to ask it."""
        return bool(self._later)

    def settle(self, holder: Holder, tag: str) -> None:
        """Ack through the keeper's own connection: the delivery's channel is gone."""
        self._now_or_later(lambda: self._settle(holder, tag))

    def settle_later(self, holder: Holder, tag: str) -> None:
        """Ack as soon as the server can be reached."""
        logger.info("an ack waits for the broker to come back", extra={"delivery_tag": tag})
        self._do_later(lambda: self._settle(holder, tag))

    def note_late_ack(self, tag: str) -> None:
        """An ack found no record: the message was given to another worker before."""
        logger.warning(
            "a message was acked after it had been given to another worker",
            extra={"delivery_tag": tag},
        )

    def lost(self, holder: Holder, tags: Collection[str]) -> None:
        """These deliveries of ours were given to others. Says so once for each."""
        messages = holder.lose(tags)
        if not messages:
            return
        logger.warning(
            "this worker was away for longer than its lease of %g s: %d messages that it holds "
            "were given to other workers and may run twice",
            self.ledger.times.lease_s,
            len(messages),
            extra={"task_ids": [_task_id(m) for m in list(messages.values())[:BATCH]]},
        )
        holder_lost.send(sender=self, messages=list(messages.values()))

    def finish(self, deadline_s: float) -> None:
        """Wait until nothing is left to be said to the server, at most so long."""
        end = time.monotonic() + deadline_s
        while self._later and time.monotonic() < end:
            self._wake.set()
            time.sleep(0.05)

    # -- the thread

    def _run(self) -> None:
        while not self._finished():
            try:
                pause_s = self._step()
                self._recovered()
            except Exception as error:
                self._report(error)
                pause_s = min(RETRY_PAUSE_S, self.ledger.times.tick_s)
            if pause_s > 0:
                self._wake.wait(pause_s)
            self._wake.clear()
        if self._client is not None:
            self._client.connection_pool.disconnect()
        self._thread = None

    def _finished(self) -> bool:
        """Whether the worker ended in a process that goes on (an embedded worker)."""
        if not self.stopping() or self._later or self._taken:
            return False
        return not any(holder.open for holder in self._holders)

    def _step(self) -> float:
        """Do what is most urgent; returns seconds until there is something to do."""
        if time.monotonic() >= self._tick_due:
            self._tick()
            self._tick_due = self._after(self.ledger.times.tick_s * random.uniform(0.7, 1.0))
        if self._later:
            self._do_first()
        elif self._taken:
            self._redeliver_batch(self._taken[0])
        elif time.monotonic() >= self._refresh_due:
            self._refresh()
        else:
            return max(0.001, self._tick_due - time.monotonic())
        return 0.0

    def _tick(self) -> None:
        before = {h.id: (h, list(h.open.copy())) for h in self._holders if h.open}
        client = self._redis()
        lost, expired = self.ledger.tick(client, list(before))
        for holder_id in lost:
            self.lost(*before[holder_id])
        self._give_back_forgotten()
        for dead in expired:
            taker = uuid.uuid4().hex
            count = self.ledger.take_over(client, dead, taker)
            if count > 0:
                self._taken.append(taker)
            if count > 0 and dead != ASIDE:
                logger.warning("taking over %d messages of a worker that is gone", count)

    def _give_back_forgotten(self) -> None:
        closed = [h for h in self._holders if h.closed and h.open]
        if not closed or all(h.closed for h in self._holders):
            return  # without a connection, celery's acks wait too
        running = self.running()
        for holder in closed:
            tags = holder.forgotten(running, time.monotonic(), self.ledger.times.lease_s)
            if holder.lose(tags):
                logger.warning("%d messages of ended tasks were never acked; put back", len(tags))
                self.give_back(holder, tags, front=None)

    def _redeliver_batch(self, taken: str) -> None:
        client = self._redis()
        found = self.ledger.peek(client, taken, BATCH)
        if not found:
            self._taken.popleft()
            return
        self._put_back(client, taken, found, None, True)

    def _refresh(self) -> None:
        for holder in self._holders:
            if holder.open and self.ledger.refresh(self._redis(), holder.id, BATCH) == BATCH:
                return  # more of them: again at the next step
        self._refresh_due = self._after(self.ledger.times.horizon_s / REFRESHES_PER_HORIZON)

    def _do_first(self) -> None:
        job = self._later[0]
        try:
            job()
        except Exception as error:
            if not is_transient(error):
                self._later.rotate(-1)  # the others must not wait for this one
            raise
        self._later.popleft()

    # -- what either thread does

    def _now_or_later(self, job: Callable[[], None]) -> None:
        if self._later:
            self._do_later(job)  # in order, and the server is away anyhow
            return
        try:
            job()
        except Exception as error:
            self._report(error)
            self._do_later(job)

    def _do_later(self, job: Callable[[], None]) -> None:
        self._later.append(job)
        self._wake.set()

    def _settle(self, holder: Holder, tag: str) -> None:
        if not self.ledger.settle(self._scripts(), holder.id, [tag]):
            self.note_late_ack(tag)

    def _give_back(
        self, holder: Holder, tags: Sequence[str], front: bool | None, retire: bool
    ) -> None:
        client = self._redis()
        # What is recorded is what was sent; the message in memory may have been changed by now.
        for start in range(0, max(1, len(tags)), BATCH):
            batch = tags[start : start + BATCH]
            found = self.ledger.records(client, batch)
            self._put_back(client, holder.id, found, front, retire)

    def _put_back(
        self,
        client: redis.Redis,
        holder_id: str,
        found: Sequence[tuple[str, bytes | None]],
        front: bool | None,
        retire: bool,
    ) -> None:
        routes = Routes(self._channel)
        items: list[Redelivery] = []
        aside: list[str] = []
        for tag, record in found:
            item = routes.back(tag, record, front=front) if record else dropped(tag)
            if item is None:
                aside.append(tag)
            else:
                items.append(item)
        self.ledger.redeliver(client, holder_id, items, retire=retire)
        self._set_aside(client, holder_id, aside)

    def _set_aside(self, client: redis.Redis, holder_id: str, tags: list[str]) -> None:
        if not tags:
            return
        self.ledger.strand(client, holder_id, tags)
        logger.error(
            "%d messages can't be redelivered: no queue is bound to their exchange and routing "
            "key; they stay in %r and are tried again every %g s",
            len(tags),
            self.ledger.unacked,
            self.ledger.times.aside_s,
        )

    def _redis(self) -> redis.Redis:
        with self._opening:
            if self._client is None:
                self._channel = self._open_channel()
                self._client = redis.Redis(connection_pool=self._channel.pool)
            return self._client

    def _scripts(self) -> ScriptRunner:
        return ScriptRunner(self._redis(), patience_s=0, spare=0)

    def _report(self, error: Exception) -> None:
        if not is_transient(error):
            logger.exception("the visibility keeper failed; it goes on")
        elif not self._failing:
            self._failing = True
            logger.warning("the visibility keeper can't reach the broker (%s)", error)
        if self._client is not None:
            self._client.connection_pool.disconnect(inuse_connections=False)

    def _recovered(self) -> None:
        if self._failing:
            self._failing = False
            logger.info("the visibility keeper reached the broker again")

    def _after(self, seconds: float) -> float:
        return time.monotonic() + seconds


def _task_id(message: Any) -> Any:
    return (message.headers or {}).get("id") or message.properties.get("correlation_id")
