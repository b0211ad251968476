"""A channel and its session: begun when the first message is wanted, ended with the channel."""

from __future__ import annotations

import logging
import os

import redis

from celery_idem.transport import cluster, kombu_base, status
from celery_idem.transport.keeper import Flusher, Keeper
from celery_idem.transport.keys import Keys
from celery_idem.transport.session import Session, Terms

logger = logging.getLogger("celery_idem.transport")


class Leasing(kombu_base.Channel):  # type: ignore[misc]
    """The half of the channel that knows what is held."""

    #: Silence of a worker after which its messages go to others, in seconds.
    lease_s = 30.0
    #: Pause of a second requeue (the first comes at once), doubled each time, and its bound.
    requeue_delay_s = 0.1
    requeue_delay_max_s = 60.0

    keys: Keys
    steps: tuple[str, ...]
    lanes: tuple[str, ...]  #: queues that are consumed
    _ttl_ms: dict[str, int]  #: queue → time after which it goes when nobody uses it
    is_broken = False  #: the connection was lost, not closed
    gathers_acks = False  #: an event loop turns, and sends acks with its fetches
    _session: Session | None = None
    _keeper: Keeper | None = None
    _flusher: Flusher | None = None
    _raw: redis.Redis | None = None
    _pid = 0

    @property
    def raw(self) -> redis.Redis:
        """A client that leaves our keys as they are (kombu's would prefix some of them)."""
        if self._raw is None or self._raw.connection_pool is not self.pool:
            self._raw = redis.Redis(connection_pool=self.pool)
        return self._raw

    @property
    def session(self) -> Session:
        """What this channel holds; begun when the first message is wanted."""
        if self._session is None or self._pid != os.getpid():
            terms = Terms(
                float(self.lease_s), float(self.requeue_delay_s), float(self.requeue_delay_max_s)
            )
            self._pid = os.getpid()
            self._session = Session(self.keys, self._get_pool(), terms)
            self._keeper = None
            self._flusher = Flusher(self._session)
        return self._session

    @property
    def holds_something(self) -> bool:
        """Whether a message was handed out here and is not acked."""
        return self._session is not None and bool(self._session.held)

    def lanes_that_expire(self) -> dict[str, int]:
        """Lane → ms after which it goes: of what is consumed here, or something is held of."""
        known = self._ttl_ms.copy()
        if not known or self._session is None:
            return {}
        held = {it.lane for it in self._session.held.copy().values()}
        lanes = {queue: self.keys.lane(queue) for queue in known}
        return {
            lane: known[queue]
            for queue, lane in lanes.items()
            if queue in self.lanes or lane in held
        }

    def join(self, queues: list[str]) -> Session:
        """The session, registered for these queues and kept alive."""
        session = self.session
        if self._keeper is None:
            cluster.require_one_slot(session.client, self.keys)
        session.join(self.keys.lane(queue) for queue in queues)
        if self._keeper is None:
            for sentence in status.warnings(session.client):
                logger.warning("%s", sentence)
            self._keeper = Keeper(session, self.lanes_that_expire)
            self._keeper.start()
        return session

    def note(self, tag: str) -> None:
        """The job is over, and its ack or requeue will come."""
        if self._session is not None:
            self._session.note(tag)

    def settle(self, tag: str) -> None:
        """Ack: gathered for the next turn of the event loop, else sent at once."""
        session = self._session
        if session is None or not session.ack(tag):
            return
        gathered = self.gathers_acks or not session.flush()
        if gathered and self._flusher is not None:
            self._flusher.notice()
        if self.connection is not None:
            self.connection.cycle.wake()

    def requeue(self, tag: str) -> None:
        if self._session is None:
            return
        if not self._session.requeue(tag) and self._flusher is not None:
            self._flusher.notice()

    def give_back(self, tags: list[str]) -> None:
        if self._session is not None:
            self._session.give_back(tags)

    def end_session(self) -> None:
        """Give everything unacked back; or, when the connection was lost, leave it to the keeper.

        Celery lets tasks run on when it connects anew: their acks come through this channel yet.
        """
        session = self._session
        if session is None or session.pid != os.getpid():
            return
        if self._keeper is not None and self.is_broken and not session.lost:
            self._keeper.linger()
            return
        if self._keeper is not None:
            self._keeper.stop()
        self._session = None
        session.end()
