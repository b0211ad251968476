"""Database connections of the store's own, so that a claim commits whatever transaction is open.

A claim written on the project's connection would wait for the transaction around it, and be undone
with it. These are further connections to the same database, with the alias's own settings, in
autocommit; one per call that runs at the same moment, kept for the next. They are not in
``django.db.connections``: nothing that closes, blocks or wraps those reaches them.
"""

from __future__ import annotations

import logging
import os
import random
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connections

from celery_idem.core.errors import ConfigError, StoreUnavailable
from celery_idem.django import forks

logger = logging.getLogger("celery_idem.django")

T = TypeVar("T")

#: First pause before a call is tried again, in seconds; doubled up to the longest.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
#: How long SQLite itself waits for a lock of another connection, in milliseconds.
SQLITE_BUSY_MS = 2_000
#: Databases whose clock and conditional writes this store knows.
VENDORS = ("postgresql", "mysql", "sqlite")

_pools: weakref.WeakSet[Connections] = weakref.WeakSet()
#: Connections of a parent, kept and never used: closing them, even by garbage collection, would end
#: its conversations.
_inherited: list[Any] = []


class Connections:
    """A pool for one alias; safe for threads, greenlets and forks.

    ``patience_s``: how long a call is tried again while the database can't be reached, before
    :class:`StoreUnavailable`. 0 asks once, and once more on a connection that had died unseen.
    """

    def __init__(
        self,
        alias: str,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.alias = alias
        self.patience_s = patience_s
        self._clock = clock
        self._pause = pause
        self._pid = os.getpid()
        self._idle: deque[Any] = deque()
        self._on_sqlite = False
        _pools.add(self)

    @property
    def vendor(self) -> str:
        """``postgresql``, ``mysql`` or ``sqlite``; else :class:`ConfigError`."""
        vendor: str = connections[self.alias].vendor
        if vendor not in VENDORS:
            raise ConfigError(
                f"idem: the database {self.alias!r} is {vendor}; records can be kept in "
                f"{', '.join(VENDORS)} (MariaDB is mysql)"
            )
        return vendor

    def patiently(self, attempt: Callable[[Any], T]) -> T:
        """Call with a connection, again while the database can't be reached.

        What is attempted must be safe to say twice: its reply may have been lost.
        """
        gives_up_at = self._clock() + self._patience()
        pause_s = 0.0
        while True:
            try:
                with self._taken() as connection:
                    return attempt(connection)
            except DatabaseError as error:
                if not may_pass(error):
                    raise StoreUnavailable(self._text(error)) from error
                if pause_s and self._clock() + pause_s > gives_up_at:
                    raise StoreUnavailable(self._text(error)) from error
                if pause_s == FIRST_PAUSE_S:
                    logger.warning(
                        "records can't be read or written in the database (%s); trying again", error
                    )
            except InterfaceError as error:
                if pause_s and self._clock() + pause_s > gives_up_at:
                    raise StoreUnavailable(self._text(error)) from error
            # With jitter: those that collided must not collide again.
            self._pause(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2 or FIRST_PAUSE_S)

    def close(self) -> None:
        """Let go of the idle connections."""
        self._forget_if_forked()
        while self._idle:
            self._idle.pop().close()

    def close_before_fork(self) -> None:
        """Where it is SQLite: see :mod:`celery_idem.django.forks`."""
        if self._on_sqlite:
            self.close()

    @contextmanager
    def _taken(self) -> Iterator[Any]:
        gate = forks.GATE.passed() if self.vendor == "sqlite" else nullcontext()
        with gate, self._lent() as connection:
            yield connection

    @contextmanager
    def _lent(self) -> Iterator[Any]:
        self._forget_if_forked()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open()
        healthy = False
        try:
            yield connection
            healthy = True
        finally:
            if healthy:
                self._idle.append(connection)
            else:
                _close(connection)

    def _open(self) -> Any:
        vendor = self.vendor
        connection: Any = connections.create_connection(self.alias)
        connection.inc_thread_sharing()
        if vendor == "sqlite":
            self._on_sqlite = True
            _check_sqlite(connection)
        connection.ensure_connection()
        if not connection.get_autocommit():
            connection.set_autocommit(True)
        if vendor == "sqlite":
            with connection.cursor() as cursor:
                cursor.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_MS}")
        return connection

    def _patience(self) -> float:
        """None where waiting can't help: SQLite has one writer, and this thread is it."""
        return 0.0 if self._blocks_itself() else self.patience_s

    def _blocks_itself(self) -> bool:
        mine = connections[self.alias]
        return mine.vendor == "sqlite" and mine.in_atomic_block

    def _text(self, error: Exception) -> str:
        text = f"the database {self.alias!r} could not keep a record: {error}"
        if _is_missing_table(error):
            return f"{text}; run: manage.py migrate celery_idem --database {self.alias}"
        if self._blocks_itself():
            return (
                f"{text}. SQLite has one writer, and a transaction is open on {self.alias!r} in "
                "this very thread: claim before it begins, or keep records elsewhere"
            )
        return f"{text} (tried for {self.patience_s:g} s)"

    def _forget_if_forked(self) -> None:
        if self._pid != os.getpid():
            _inherited.extend(self._idle)
            self._idle = deque()
            self._pid = os.getpid()


def _close_before_fork() -> None:
    for pool in list(_pools):
        pool.close_before_fork()


forks.at_forks(_close_before_fork)


class Transaction:
    """A transaction on one of the store's own connections, which are in autocommit otherwise.

    ``django.db.transaction.atomic`` would want an alias. SQLite takes its write lock at once: one
    that begins by reading can't always get it later.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._undone = False

    def undo(self) -> None:
        """Roll back at the end, without an exception."""
        self._undone = True

    def __enter__(self) -> Transaction:
        self._say("BEGIN IMMEDIATE" if self._connection.vendor == "sqlite" else "BEGIN")
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        # A connection on which this fails is closed by whoever took it, and so rolled back.
        self._say("COMMIT" if exc is None and not self._undone else "ROLLBACK")

    def _say(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)


def may_pass(error: DatabaseError) -> bool:
    """Whether the same statement may succeed later: a lost connection, a lock, a deadlock."""
    return isinstance(error, (OperationalError, InterfaceError)) and not _is_missing_table(error)


def _is_missing_table(error: Exception) -> bool:
    text = str(error)
    return any(
        sign in text for sign in ("no such table", "UndefinedTable", "does not exist", "1146")
    ) and ("idem_" in text)


def _check_sqlite(connection: Any) -> None:
    name = str(connection.settings_dict["NAME"])
    if name == ":memory:" or (connection.is_in_memory_db() and "cache=shared" not in name):
        raise ConfigError(
            "idem: an in-memory SQLite database can't keep records: every connection has one of "
            'its own. Use a file, or idem = {"store": "memory"} in tests'
        )


def _close(connection: Any) -> None:
    try:
        connection.close()
    except Exception as error:
        logger.debug("a broken connection did not close: %s", type(error).__name__)
