"""A session: what one consuming channel holds, under one lease by the server's clock.

A session is one entry in the sorted set of leases, however many messages it holds. It is renewed
by a thread of its own (:mod:`~celery_idem.transport.keeper`). When the lease is over, or the
session ends, another worker's sweep puts what it held back to the front of its lane, under new
ids: an ack that comes too late finds nothing, and removes nothing.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from celery_idem.transport import scripts, taking_over
from celery_idem.transport.keys import Keys

logger = logging.getLogger("celery_idem.transport")

#: Longest wait for acks that another thread sends, where sockets have no timeout, in seconds.
LONGEST_ANSWER_S = 15.0
#: More time by the server's clock than by ours between two ticks, in seconds, is a leap.
LEAP_S = 1.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What a channel's options say about its sessions."""

    lease_s: float = 30.0  #: silence after which a worker counts as dead
    requeue_delay_s: float = 0.1  #: pause of a second requeue (a first has none), then doubled
    requeue_delay_max_s: float = 60.0  #: its upper bound


@dataclass(frozen=True, slots=True)
class Held:
    """Where a message is that this session holds."""

    lane: str
    step: str
    id: str


class LeaseOver(redis.ConnectionError):
    """The server declared this session dead: what it held belongs to others now.

    A connection error, so that Celery drops what it has not started yet and connects anew.
    """


class Session:
    """Messages held under one lease. Acks may come from any thread.

    Raises nothing to those who ack or requeue: what can't be sent is kept and sent later, as long
    as the lease holds.
    """

    def __init__(self, keys: Keys, pool: Any, terms: Terms) -> None:
        self.keys = keys
        self.terms = terms
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.client: redis.Redis = redis.Redis(connection_pool=pool)
        self.pid = os.getpid()
        self.held: dict[str, Held] = {}
        #: Tags whose ack or requeue Celery has yet to bring here (see transport/noted.py) → since.
        self.noted: dict[str, float] = {}
        #: When a fetch was sent whose answer has yet to be read; what it took is not known here.
        self.asked_at: float | None = None
        self.lost = False  #: declared dead by the server
        self.ended = False
        self.renewed_at = time.monotonic()
        self.leapt = False  #: the server's clock leapt ahead before the last tick
        self._joined: set[str] = set()
        self._outbox: list[Held] = []
        self._on_the_way: list[Held] = []  # acks and requeues that were sent, and not answered
        self._sent_before: set[Held] = set()  # acks that may have arrived, and are sent again
        self._requeues: list[Held] = []  # those that could not be sent
        self._oldest_ack_at = 0.0
        # both may be wanted by a signal's handler, in the thread that has them
        self._lock = threading.RLock()
        self._sending = threading.RLock()  # acks are taken, sent and answered by one at a time

    @property
    def lease_ms(self) -> int:
        return int(self.terms.lease_s * 1000)

    # -- life

    def join(self, lanes: Iterable[str]) -> None:
        """Register for these lanes, before anything is taken from them.

        Raises :class:`LeaseOver`, or redis-py's errors: then nothing may be taken.
        """
        new = [lane for lane in lanes if lane not in self._joined]
        if not new:
            return
        first = "0" if self._joined else "1"
        keys = [self.keys.leases, self.keys.session_lanes(self.name), self.keys.pulse]
        args: list[scripts.Arg] = [self.name, self.lease_ms, first, *new]
        if not scripts.JOIN(self.client, keys, args):
            self.declare_lost()
            raise LeaseOver(f"the lease of {self.name} is over")
        self._joined.update(new)
        self.renewed_at = time.monotonic()

    @property
    def joined(self) -> frozenset[str]:
        return frozenset(self._joined)

    def declare_lost(self) -> None:
        """Note that the server has given up this session; nothing of it may go on."""
        if self.lost or self.ended:
            return
        self.lost = True
        logger.warning(
            "declared dead by the server: %d messages of this worker went to others",
            len(self.held),
            extra={"session": self.name},
        )

    def check(self) -> None:
        """Ask the server, if the lease may be over by the local clock. Raises LeaseOver."""
        if not self.lost and self._joined and self.silent_s() > self.terms.lease_s:
            self.tick()
        if self.lost:
            raise LeaseOver(f"the lease of {self.name} is over")

    def silent_s(self) -> float:
        """Seconds since the last renewal that the server confirmed."""
        return time.monotonic() - self.renewed_at

    def tick(self, client: Any = None) -> tuple[int, int]:
        """Renew the lease. Returns ms until a delayed message is due, and until some lease is
        over; -1 where there is none."""
        sent_at = time.monotonic()
        keys = [self.keys.leases, self.keys.due, self.keys.dying, self.keys.pulse]
        alive, due_ms, over_ms, silent_ms = scripts.TICK(
            self.client if client is None else client, keys, [self.name, self.lease_ms]
        )
        self.leapt = silent_ms / 1000 > sent_at - self.renewed_at + LEAP_S
        if alive:
            self.renewed_at = sent_at
        elif self._joined:
            self.declare_lost()
        return int(due_ms), int(over_ms)

    # -- what is held

    def take(self, tag: str, held: Held) -> None:
        self.held[tag] = held

    def ack(self, tag: str) -> bool:
        """Remove the message for good, with the next flush. False when it is not held here."""
        with self._lock:
            held = self.held.pop(tag, None)
            self.noted.pop(tag, None)
            if held is None:
                return False
            if not self._outbox:
                self._oldest_ack_at = time.monotonic()
            self._outbox.append(held)
        return True

    def note(self, tag: str) -> None:
        """Its job is over: the ack, or the requeue, is on its way to this session."""
        if tag in self.held:
            self.noted[tag] = time.monotonic()

    @property
    def has_acks(self) -> bool:
        return bool(self._outbox)

    @property
    def owes(self) -> bool:
        """Whether the server has yet to be told of an ack or a requeue."""
        return bool(self._outbox or self._requeues)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, and every ack and requeue was answered."""
        return not (self.held or self._on_the_way or self.owes)

    def acks_wait_s(self) -> float:
        """Seconds that the oldest gathered ack has been waiting."""
        return time.monotonic() - self._oldest_ack_at

    def take_acks(self) -> list[Held]:
        """The acks gathered so far; give them back with :meth:`put_back` if they can't be sent."""
        with self._lock:
            acks, self._outbox = self._outbox, []
            self._on_the_way += acks
        return acks

    def put_back(self, acks: Sequence[Held]) -> None:
        with self._lock:
            self._outbox[:0] = acks
            self._sent_before.update(acks)
            self._arrived(acks)

    def _arrived(self, acks: Sequence[Held]) -> None:
        for held in acks:
            self._on_the_way.remove(held)

    def ack_call(self, acks: Sequence[Held]) -> tuple[list[str], list[scripts.Arg]]:
        """Keys and arguments of the ack script for these."""
        streams: dict[str, list[str]] = {}
        for held in acks:
            streams.setdefault(self.keys.stream(held.lane, held.step), []).append(held.id)
        args: list[scripts.Arg] = [self.name]
        for stream, ids in streams.items():
            args += ["0" if stream.endswith(":0") else "1", len(ids), *ids]
        return [self.keys.leases, *streams], args

    def acked(self, acks: Sequence[Held], reply: Sequence[Any]) -> None:
        """Look at the ack script's answer."""
        with self._lock:
            self._arrived(acks)
            again = {held.id for held in acks if held in self._sent_before}
            self._sent_before.difference_update(acks)
        stale = [bytes(item).decode() for item in reply[2::2]]
        if reply[0]:  # nobody took anything over: what was sent before had arrived, unanswered
            stale = [id_ for id_ in stale if id_ not in again]
        else:
            self.declare_lost()
        if stale:
            logger.warning(
                "%d acks came too late: the messages were taken over, and run again",
                len(stale),
                extra={"session": self.name, "ids": stale},
            )

    def flush(self) -> bool:
        """Send the gathered acks now, over a connection of its own. False: kept for later."""
        if not self._sending.acquire(timeout=self._patience_s):
            return False
        try:
            return self._flush()
        finally:
            self._sending.release()

    @property
    def _patience_s(self) -> float:
        """How long another thread's sending may take."""
        options = self.client.connection_pool.connection_kwargs
        return float(options.get("socket_timeout") or LONGEST_ANSWER_S)

    def _flush(self) -> bool:
        acks = self.take_acks()
        if not acks:
            return True
        try:
            reply = scripts.ACK(self.client, *self.ack_call(acks))
        except BaseException as error:
            self.put_back(acks)
            if not isinstance(error, (redis.RedisError, OSError)):
                raise
            logger.info("%d acks wait for the server: %s", len(acks), error)
            return False
        self.acked(acks, reply)
        return True

    def requeue(self, tag: str) -> bool:
        """Put a message back: the first time at once, then after a delay that doubles. False: the
        server can't be told now, and :meth:`flush_requeues` will."""
        with self._lock:
            held = self.held.pop(tag, None)
            self.noted.pop(tag, None)
            if held is None:
                return True
            self._requeues.append(held)
        return self.flush_requeues()

    def flush_requeues(self) -> bool:
        """Send what could not be sent. False: kept for later."""
        while True:
            with self._lock:
                if not self._requeues:
                    return True
                held = self._requeues.pop()
                self._on_the_way.append(held)
            try:
                self._requeue(held)
            except BaseException as error:
                with self._lock:
                    self._requeues.append(held)
                    self._arrived([held])
                if not isinstance(error, (redis.RedisError, OSError)):
                    raise
                logger.info("a requeue waits for the server: %s", error)
                return False
            with self._lock:
                self._arrived([held])

    def _requeue(self, held: Held) -> None:
        keys = [held.lane, self.keys.due, self.keys.wake]
        delays = [
            int(self.terms.requeue_delay_s * 1000),
            int(self.terms.requeue_delay_max_s * 1000),
        ]
        scripts.REQUEUE(self.client, keys, [self.name, held.step, held.id, *delays])

    def give_back(self, tags: Iterable[str]) -> None:
        """Put messages back to the front of their lanes at once, uncharged with a delay."""
        going = {tag: held for tag in list(tags) if (held := self.held.pop(tag, None)) is not None}
        try:
            for lane in dict.fromkeys(held.lane for held in going.values()):
                these = {tag: held for tag, held in going.items() if held.lane == lane}
                pairs = [part for held in these.values() for part in (held.step, held.id)]
                scripts.GIVE_BACK(self.client, [lane], [self.name, "these", 0, *pairs])
                for tag in these:
                    del going[tag]
        finally:
            self.held.update(going)  # what the server was not told of is held as before

    def recover(self, idle_s: float = 0.0) -> None:
        """Give back what the server handed to this session in an answer that never came.

        ``idle_s``: only what was handed over longer ago, so that no answer on its way is meant;
        nothing while one is that was asked for long ago.
        """
        asked_at = self.asked_at
        if idle_s and asked_at is not None and time.monotonic() - asked_at > idle_s / 2:
            return
        lanes = self.joined  # before what is known: a lane that joins meanwhile has nothing old
        with self._lock:
            known = [
                *self.held.copy().values(), *self._outbox, *self._on_the_way, *self._requeues,
            ]  # fmt: skip
        for lane in lanes:
            pairs = [part for held in known if held.lane == lane for part in (held.step, held.id)]
            args: list[scripts.Arg] = [self.name, "others", int(idle_s * 1000), *pairs]
            if given := scripts.GIVE_BACK(self.client, [lane], args):
                logger.warning(
                    "%d messages whose hand-over got lost were given back",
                    given,
                    extra={"session": self.name, "lane": lane},
                )

    # -- the end

    def end(self) -> None:
        """Ack what was acked, give everything else back, and be gone. Safe to call again.

        When the server can't be reached, the lease runs out and others do it.
        """
        if self.ended or self.pid != os.getpid():
            return
        # acks that another thread has just sent come first: what they are of must not go to others
        alone = self._sending.acquire(timeout=self._patience_s)
        try:
            self._end()
        finally:
            if alone:
                self._sending.release()

    def _end(self) -> None:
        if self.ended:
            return
        try:
            # once more over a new connection: what is done would be given back below, and run again
            _ = self._flush() or self._flush()
            self.flush_requeues()
            self.ended = True
            if self._joined:
                while taking_over.sweep(self.client, self.keys, end=self.name).more:
                    pass
        except redis.RedisError as error:
            logger.info("could not say good-bye, the lease will run out: %s", error)
        finally:
            self.ended = True
            self.held.clear()
            self.client.connection_pool.disconnect(inuse_connections=False)
