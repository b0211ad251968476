"""The threads beside a session: one keeps its lease and the broker's clockwork, one sends acks.

They have connections of their own, so that they share no fate with the consumer's, and go on while
the consumer is busy. There is no leader: every keeper may hand out what is due and take over from
the dead; each step is one atomic script, so it does not matter who comes first.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from multiprocessing.util import Finalize
from typing import Any
from weakref import WeakSet

import redis
from redis.exceptions import NoPermissionError, ResponseError

from celery_idem.stores.redis.scripts import is_transient
from celery_idem.transport import scripts, taking_over
from celery_idem.transport.keys import ALL_STEPS, FRONT
from celery_idem.transport.running import tags_that_run, yet_to_run
from celery_idem.transport.session import Session

logger = logging.getLogger("celery_idem.transport")

#: Longest sleep of a keeper, in seconds: what it could miss, it misses for no longer.
LONGEST_SLEEP_S = 10.0
#: Delayed messages that one call hands out.
PROMOTE_BATCH = 200
#: Shortest pause between two looks at what is due, in seconds.
PROMOTE_PAUSE_S = 0.02
#: After an outage nobody could renew: seconds that the living get to do it before a sweep.
GRACE_AFTER_OUTAGE_S = 5.0
#: Pause between two tries to reach the server, in seconds.
RETRY_PAUSE_S = 0.5
#: Pause after which a duty is tried again that the server refused for good, in seconds.
REFUSED_PAUSE_S = 5.0
#: An ack that the consumer has not sent after so many seconds is sent by the flusher.
ACK_PATIENCE_S = 0.02
#: How long an ack that Celery has put off is waited for while the server can be reached, in
#: seconds: Celery itself tries to reach it every 32 s at least. Then it counts as lost.
PUT_OFF_PATIENCE_S = 120.0
#: How long a session whose connection broke waits for Celery to drop what it has not started.
DROP_PATIENCE_S = 2.0


#: How often it is checked that the server and the session agree on what is held, in seconds.
AUDIT_EVERY_S = 60.0

#: Sessions that linger. With their process they end at once, not by their lease.
_lingering: WeakSet[Session] = WeakSet()


def _end_the_lingering() -> None:
    for session in tuple(_lingering):
        session.end()


# as kombu gives back what a channel holds that nobody has closed
Finalize(None, _end_the_lingering, exitpriority=1)


def is_refused_for_good(error: BaseException) -> bool:
    """Whether the server was reached, and will not do it later either."""
    return isinstance(error, ResponseError) and not is_transient(error)


class Keeper:
    """Renews a session's lease, hands out what is due, takes over from the dead."""

    def __init__(
        self, session: Session, lanes_that_expire: Callable[[], Mapping[str, int]]
    ) -> None:
        self.session = session
        self._lanes_that_expire = lanes_that_expire
        self._kept_at: dict[str, float] = {}
        self.lingering_since: float | None = None
        self._stopped = False
        self._no_sweep_before = 0.0
        self._seen_over: set[str] = set()
        self._yet_to_run: Collection[Any] = ()
        self._reached_since = time.monotonic()
        self._fresh = True
        self._next_at: dict[str, float] = {}  # of duties that need not be done in every turn
        self._thread = threading.Thread(
            target=self._run, name=f"idem-keeper-{session.name[-8:]}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True

    def linger(self) -> None:
        """The consumer's connection broke: keep the lease for what still runs, give back the rest.

        Celery drops what it has not started when it connects anew, but what runs goes on, and is
        acked when it is done. So a short outage makes nobody run a task twice.
        """
        if self.lingering_since is None:
            self.lingering_since = time.monotonic()
            _lingering.add(self.session)
            self._yet_to_run = yet_to_run()  # before Celery forgets them

    # -- the thread

    def _run(self) -> None:
        session = self.session
        client = session.client
        while not self._is_over() and not session.lost:
            try:
                if self._fresh:
                    self._look_at_uptime(client)
                sleep_s = self._turn(client)
                if self.lingering_since is not None and self._let_go():
                    session.end()
                    return
                self._sleep(client, sleep_s)
            except redis.RedisError as error:
                if self._is_over():
                    return
                if is_refused_for_good(error):
                    self._complain(error)
                    time.sleep(RETRY_PAUSE_S)
                    continue
                logger.info("the keeper can't reach the server: %s", error)
                self._no_sweep_before = time.monotonic() + GRACE_AFTER_OUTAGE_S
                time.sleep(RETRY_PAUSE_S)
                self._reached_since = time.monotonic()
            except Exception:
                if self._is_over() or sys.is_finalizing():
                    return
                logger.exception("the keeper goes on after an error")
                time.sleep(RETRY_PAUSE_S)
        if self.lingering_since is not None:
            session.end()

    def _is_over(self) -> bool:
        return self._stopped or self.session.ended or self.session.pid != os.getpid()

    def _look_at_uptime(self, client: Any) -> None:
        try:
            server = client.info("server")
        except NoPermissionError:  # a user without INFO: it may have started just now
            server = {"uptime_in_seconds": 0}
        uptime_s = float(server.get("uptime_in_seconds", GRACE_AFTER_OUTAGE_S))
        if uptime_s < GRACE_AFTER_OUTAGE_S:
            self._no_sweep_before = time.monotonic() + GRACE_AFTER_OUTAGE_S - uptime_s
        self._fresh = False

    def _turn(self, client: Any) -> float:
        """One round of work; the seconds until the next."""
        session = self.session
        try:
            due_ms, over_ms = session.tick(client)
        except redis.RedisError:
            # whatever it was, the living may have met it too, and need time to renew after it
            self._no_sweep_before = time.monotonic() + GRACE_AFTER_OUTAGE_S
            raise
        if session.leapt:
            self._no_sweep_before = time.monotonic() + GRACE_AFTER_OUTAGE_S
        return min(
            session.terms.lease_s / 3,
            LONGEST_SLEEP_S,
            self._do("the audit", lambda: self._audit(client)),
            self._do("what is due", lambda: self._promote(client, due_ms)),
            self._do("lanes that expire", lambda: self._keep_lanes(client)),
            self._do("the dead", lambda: self._look_at_the_dead(client, over_ms / 1000)),
        )

    def _complain(self, error: redis.RedisError) -> None:
        if time.monotonic() >= self._next_at.get("a complaint", 0.0):
            logger.error("the keeper's work is refused: %s", error)
            self._next_at["a complaint"] = time.monotonic() + REFUSED_PAUSE_S

    def _do(self, name: str, duty: Callable[[], float]) -> float:
        """One duty, and the seconds until it wants to be done again. What the server refuses of it
        is no outage, and keeps the keeper from no other one."""
        wait_s = self._next_at.get(name, 0.0) - time.monotonic()
        if wait_s > 0:
            return wait_s
        try:
            return duty()
        except ResponseError as error:
            if not is_refused_for_good(error):
                raise
            logger.error("the keeper is refused (%s): %s", name, error)
            self._next_at[name] = time.monotonic() + REFUSED_PAUSE_S
            return REFUSED_PAUSE_S

    def _audit(self, client: Any) -> float:
        taking_over.audit(client, self.session.keys, self.session.joined)
        self.session.recover(idle_s=AUDIT_EVERY_S / 2)
        self._next_at["the audit"] = time.monotonic() + AUDIT_EVERY_S
        return AUDIT_EVERY_S

    def _promote(self, client: Any, due_ms: int) -> float:
        while due_ms == 0:
            moved, due_ms, *failed = scripts.PROMOTE(
                client, [self.session.keys.due], [PROMOTE_BATCH]
            )
            for lane, why in failed:
                logger.error(
                    "a delayed message can't be handed out, and is tried again in a minute: %s",
                    why.decode(),
                    extra={"lane": lane.decode()},
                )
            if not moved:
                break
        if due_ms < 0:
            return LONGEST_SLEEP_S
        # not all keepers at the same moment: the first one does it for all
        return max(due_ms / 1000, PROMOTE_PAUSE_S * (1 + random.random()))

    def _keep_lanes(self, client: Any) -> float:
        """Put off the expiry of lanes that are in use, at a third of their time; the seconds until
        the next time. As in AMQP, a queue with a consumer does not go, however idle or busy."""
        lanes = self._lanes_that_expire()
        for lane, ttl_ms in lanes.items():
            if time.monotonic() - self._kept_at.get(lane, -ttl_ms) >= ttl_ms / 3000:
                scripts.KEEP(client, [lane], [ttl_ms, FRONT, *ALL_STEPS])
                self._kept_at[lane] = time.monotonic()
        next_at = (self._kept_at[lane] + ttl_ms / 3000 for lane, ttl_ms in lanes.items())
        return max(min(next_at, default=time.monotonic() + LONGEST_SLEEP_S) - time.monotonic(), 0)

    def _look_at_the_dead(self, client: Any, over_s: float) -> float:
        if over_s < 0:
            return LONGEST_SLEEP_S
        patience_s = self._no_sweep_before - time.monotonic()
        if over_s > 0 or patience_s > 0:
            return max(over_s, patience_s, 0.05) + 0.05 * random.random()
        while (swept := taking_over.sweep(client, self.session.keys)).more:
            pass
        if swept.stuck:
            self._next_at["the dead"] = time.monotonic() + REFUSED_PAUSE_S
            return REFUSED_PAUSE_S
        return 0.2

    def _sleep(self, client: Any, seconds: float) -> None:
        """Sleep, unless something is put off until an earlier time than was known."""
        if self.lingering_since is not None:
            time.sleep(min(seconds, DROP_PATIENCE_S / 4))
            return
        timeout = client.connection_pool.connection_kwargs.get("socket_timeout")
        if timeout:
            seconds = min(seconds, timeout / 2)
        woken = client.execute_command("BLPOP", self.session.keys.wake, max(seconds, 0.01))
        if woken and self._is_over():
            # not for us any more
            client.execute_command("LPUSH", self.session.keys.wake, 1)

    def _let_go(self) -> bool:
        """Give back what does not run any more; True when nothing is left to wait for."""
        session = self.session
        if not (session.flush() and session.flush_requeues()):
            return False
        session.recover()  # nobody reads answers any more
        waited_s = time.monotonic() - (self.lingering_since or 0.0)
        if session.held and waited_s > DROP_PATIENCE_S:
            kept = {request.message.delivery_tag for request in tuple(self._yet_to_run)}
            over = set(session.held) - tags_that_run() - kept - self._put_off()
            # what has just ended may be acked in this moment: it is looked at twice
            session.give_back(over & self._seen_over)
            self._seen_over = over
        return session.is_idle

    def _put_off(self) -> set[str]:
        """What is over, and whose ack is still on its way through Celery."""
        known_before = time.monotonic() - PUT_OFF_PATIENCE_S
        noted = self.session.noted.copy()
        return {tag for tag, at in noted.items() if max(at, self._reached_since) > known_before}


class Flusher:
    """Sends acks that the consumer's loop does not send, because it is busy or over, and requeues
    that could not be sent."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()

    def notice(self) -> None:
        """An ack was gathered, or a requeue could not be sent."""
        if not self._wanted.is_set():
            self._wanted.set()
            if self._thread is None:
                self._start_thread()

    def _start_thread(self) -> None:
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"idem-acks-{self.session.name[-8:]}", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        session = self.session
        while not session.ended and session.pid == os.getpid():
            if not self._wanted.wait(LONGEST_SLEEP_S):
                continue
            time.sleep(ACK_PATIENCE_S)
            self._wanted.clear()
            if not self._flushed():
                time.sleep(RETRY_PAUSE_S)
            if session.owes:
                self._wanted.set()

    def _flushed(self) -> bool:
        session = self.session
        # what came in the last moments is the consumer's to send
        due = session.has_acks and session.acks_wait_s() >= ACK_PATIENCE_S / 2
        try:
            return (not due or session.flush()) and session.flush_requeues()
        except Exception:
            logger.exception("acks are sent again after an error")
            return False
