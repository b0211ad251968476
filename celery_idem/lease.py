"""The lease keeper: one daemon thread per process that renews the claims held through it.

In a prefork worker it lives in the parent, so a child that is busy in C code keeps its lease
(C59). It has its own connection, so it doesn't share the fate of the consumer's. All leases that
are due are renewed in one round trip.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from celery_idem.core.errors import IdemError
from celery_idem.core.record import Lease
from celery_idem.stores.base import Store

logger = logging.getLogger("celery_idem.lease")

#: A lease is renewed when this part of it has passed.
RENEW_AT = 1 / 3
#: Pause after a renewal that could not reach the store, in seconds.
RETRY_PAUSE_S = 0.5
#: How often a process that is about to end is looked at, in seconds.
WATCH_PERIOD_S = 0.02
#: A watched process that lives longer than this is left to its lease, in seconds.
WATCH_LIMIT_S = 30.0

_keepers: weakref.WeakSet[LeaseKeeper] = weakref.WeakSet()
#: Stores of a parent's keepers, kept and never used: their connections are the parent's, and
#: garbage collection would end them.
_inherited: list[Store | None] = []


@dataclass(slots=True)
class _Holding:
    lease: Lease
    due: float
    ends: float | None  #: renewals stop here (``max_lease_s``)
    on_lost: Callable[[Lease], None]
    claimed: bool  #: whether it is known to have been ours; before that it can't be lost
    told: bool = False


@dataclass(slots=True)
class _Watch:
    pid: int
    action: Callable[[], None]
    gives_up: float = field(default=0.0)


class LeaseKeeper:
    """Renews what it is told to :meth:`hold` until it is told to :meth:`drop` it.

    ``open_store`` is called once, in the thread's process, for a store with connections of its
    own. The thread starts with the first holding; it never starts in a process that holds none.
    """

    def __init__(
        self, open_store: Callable[[], Store], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open_store = open_store
        self._clock = clock
        self._store: Store | None = None
        self._thread: threading.Thread | None = None
        self._reset()
        _keepers.add(self)

    def hold(
        self,
        lease: Lease,
        on_lost: Callable[[Lease], None],
        max_lease_s: float | None = None,
        *,
        claimed: bool = True,
    ) -> None:
        """Renew this lease from now on. ``on_lost`` is called once, in the thread, when it is no
        longer the key's. ``claimed=False``: the claim is somebody else's affair (a child's), and
        may yet be refused; the lease counts as ours from its first renewal on."""
        now = self._clock()
        ends = None if max_lease_s is None else now + max_lease_s
        due = now + lease.lease_ms / 1000 * RENEW_AT
        with self._lock:
            self._held[lease.owner] = _Holding(lease, due, ends, on_lost, claimed)
            if self._thread is None:
                self._start()
            elif due < self._wakes_at:
                self._wake.set()

    def drop(self, owner: str) -> Lease | None:
        """Renew it no longer; returns the lease if it was held."""
        holding = self._held.pop(owner, None)
        return holding.lease if holding else None

    def held(self) -> list[Lease]:
        """What is held now."""
        return [holding.lease for holding in list(self._held.values())]

    def renew_now(self, patience_s: float = 1.0) -> None:
        """Renew all that is held, due or not, and wait for the answer: at most so long.

        For a worker that was cut off and is about to take messages again. Its own may be among
        them, and a lease that ran out meanwhile is its holder's until another run claims the key.
        """
        with self._lock:
            if self._thread is None or not self._held:
                return
            answered = threading.Event()
            self._asking.append(answered)
            for holding in list(self._held.values()):
                holding.due = self._clock()
        self._wake.set()
        answered.wait(patience_s)

    def when_gone(self, pid: int, action: Callable[[], None]) -> None:
        """Call ``action`` once the process has ended: at once for this one (its task is over)."""
        if pid == os.getpid():
            action()
            return
        with self._lock:
            self._watched.append(_Watch(pid, action, self._clock() + WATCH_LIMIT_S))
            if self._thread is None:
                self._start()
        self._wake.set()

    @property
    def store(self) -> Store:
        """The keeper's own store: short patience, own connections."""
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def stop(self) -> None:
        """End the thread. Nothing is released: what is held runs out by its lease."""
        thread = self._thread
        self._stopping = True
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _reset(self) -> None:
        self._held: dict[str, _Holding] = {}
        self._watched: list[_Watch] = []
        self._asking: list[threading.Event] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._wakes_at = 0.0
        self._thread = None
        self._store = None
        self._stopping = False
        self._failing = False

    def _start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="idem-lease-keeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                asking, self._asking = self._asking, []
            try:
                self._look_after_the_dying()
                pause_s = self._renew_due()
            except Exception:
                logger.exception("the lease keeper failed; it goes on")
                pause_s = RETRY_PAUSE_S
            for answered in asking:
                answered.set()
            with self._lock:
                if self._watched:
                    pause_s = WATCH_PERIOD_S
                self._wakes_at = self._clock() + pause_s
            self._wake.wait(timeout=pause_s)
            self._wake.clear()

    def _renew_due(self) -> float:
        """Renew what is due; returns seconds until the next look."""
        now = self._clock()
        due = []
        for holding in list(self._held.values()):
            if holding.ends is not None and now >= holding.ends:
                self._let_go(holding)
            elif holding.due <= now:
                due.append(holding)
        if due and not self._renew(due, now):
            return RETRY_PAUSE_S
        next_due = [holding.due for holding in list(self._held.values())]
        return max(0.01, min(next_due, default=now + 3600.0) - self._clock())

    def _renew(self, due: list[_Holding], now: float) -> bool:
        try:
            answers = self.store.renew([holding.lease for holding in due])
        except IdemError as error:
            if not self._failing:
                logger.warning("leases can't be renewed (%s); trying again", error)
            self._failing = True
            return False
        if self._failing:
            logger.info("leases are renewed again")
            self._failing = False
        for holding, mine in zip(due, answers, strict=True):
            holding.due = now + holding.lease.lease_ms / 1000 * RENEW_AT
            holding.claimed = holding.claimed or mine
            if mine or holding.told or holding.lease.owner not in self._held:
                continue
            if not holding.claimed:
                continue
            # Asked for again all the same: its task may not have claimed yet.
            holding.told = True
            holding.on_lost(holding.lease)
        return True

    def _let_go(self, holding: _Holding) -> None:
        self._held.pop(holding.lease.owner, None)
        logger.warning(
            "a task runs longer than its max_lease; its lease is renewed no longer",
            extra={"key": holding.lease.key, "task_id": holding.lease.task_id},
        )

    def _look_after_the_dying(self) -> None:
        with self._lock:
            watched, self._watched = self._watched, []
        alive = []
        for watch in watched:
            if is_gone(watch.pid):
                watch.action()
            elif self._clock() < watch.gives_up:
                alive.append(watch)
        if alive:
            with self._lock:
                self._watched += alive


def is_gone(pid: int) -> bool:
    """Whether the process runs no code any more (ended, or a zombie that waits to be reaped)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process has the number of a green thread
        return True
    except PermissionError:
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def _after_fork_in_child() -> None:
    # The thread is not in the child, and the parent's lock may be held there for ever.
    for keeper in list(_keepers):
        _inherited.append(keeper._store)
        keeper._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
