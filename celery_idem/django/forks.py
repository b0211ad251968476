"""What a fork must find closed: SQLite's connections.

SQLite keeps the locks of its process in memory, which a fork copies, and asks the kernel for them,
which gives a child none (sqlite.org/howtocorrupt.html, 2.6). A child that is forked while a thread
of its parent writes finds "database is locked" for the rest of its life; one that is forked while a
connection is merely open takes that one's lock for its own, and writes into a log that others
delete. A worker's main process renews leases while it starts its children: so forks wait for the
calls that are under way, and close what is idle.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("celery_idem.django")

#: Longest that a fork waits for calls that other threads make, in seconds. A call waits for a lock
#: of another process for two.
PATIENCE_S = 10.0


class Gate:
    """Calls go through it; a fork waits until none is inside, and keeps new ones out meanwhile."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._turn = threading.Condition()
        self._inside: list[int] = []
        self._forks = 0

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Inside is a call that may have a connection open."""
        me = threading.get_ident()
        with self._turn:
            # one that is inside already may be what the fork waits for
            self._turn.wait_for(lambda: not self._forks or me in self._inside)
            self._inside.append(me)
        try:
            yield
        finally:
            with self._turn:
                self._inside.remove(me)
                self._turn.notify_all()

    def shut(self) -> None:
        """Before a fork. After :data:`PATIENCE_S` it goes on all the same, and says so."""
        me = threading.get_ident()
        with self._turn:
            self._forks += 1
            if not self._turn.wait_for(lambda: not set(self._inside) - {me}, self._patience_s):
                logger.warning(
                    "a process is forked while SQLite is in use: the new one may find the "
                    "database locked"
                )

    def opened(self) -> None:
        """After it, in the parent."""
        with self._turn:
            self._forks -= 1
            self._turn.notify_all()

    def renewed(self) -> None:
        """After it, in the child, where the other threads are not."""
        me = threading.get_ident()
        self._turn, self._forks = threading.Condition(), 0
        self._inside = [it for it in self._inside if it == me]


#: every call on SQLite in this process
GATE = Gate()


def at_forks(before: Callable[[], None]) -> None:
    """Call it before every fork of this process, when no call is inside the gate."""

    def closed() -> None:
        GATE.shut()
        before()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=closed, after_in_parent=GATE.opened, after_in_child=GATE.renewed)
