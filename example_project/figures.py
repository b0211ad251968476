"""Looks into the books of the shop and of the gateway; changes nothing."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Over how many seconds the rate is taken.
RATE_OVER_S = 3.0


@dataclass(frozen=True, slots=True)
class Running:
    """A payment that some process works on now."""

    worker: str
    pid: int
    order_id: int
    phase: str  #: checking, asking (the gateway), charged (and not yet answered), answered


@dataclass(frozen=True, slots=True)
class Kill:
    """A payment whose process was killed, and how long it took to come back."""

    at: float
    what: str  #: worker, child
    worker: str
    pid: int
    order_id: int
    moment: str
    restarted_s: float | None  #: until the payment was begun again, by another process
    recovered_s: float | None  #: until it was done


@dataclass(frozen=True, slots=True)
class Figures:
    """One look at everything."""

    done: int
    charges: int
    asked: int
    per_second: float
    duplicates: int
    crashes: int
    running: tuple[Running, ...]
    kills: tuple[Kill, ...]

    @property
    def recovered(self) -> int:
        """Killed payments that are done by now."""
        return sum(kill.recovered_s is not None for kill in self.kills)


_RUNNING = """
SELECT r.worker, r.pid, r.order_id,
       (SELECT outcome FROM g.requests q WHERE q.order_id = r.order_id AND q.fence = r.fence),
       (SELECT answered_at FROM g.requests q WHERE q.order_id = r.order_id AND q.fence = r.fence)
FROM runs r
WHERE r.ended_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM kills k WHERE k.worker = r.worker AND (k.what = 'worker' OR k.pid = r.pid)
)
ORDER BY r.worker, r.pid
"""

_KILLS = """
SELECT k.at, k.what, k.worker, k.pid, k.order_id, k.moment,
       (SELECT min(started_at) FROM runs WHERE order_id = k.order_id AND started_at > k.at) - k.at,
       (SELECT min(ended_at) FROM runs WHERE order_id = k.order_id AND ended_at > k.at) - k.at
FROM kills k ORDER BY k.at
"""


class Reader:
    """Both databases behind one connection."""

    def __init__(self, books: Path, gateway: Path) -> None:
        self._books, self._gateway = books, gateway

    def look(self) -> Figures:
        """Everything that the view shows."""
        with self.open() as db:
            since = time.time() - RATE_OVER_S
            recent = _one(db, "SELECT count(*) FROM runs WHERE ended_at > ?", since)
            return Figures(
                done=_one(db, "SELECT count(DISTINCT order_id) FROM runs WHERE ended_at NOTNULL"),
                charges=_one(db, "SELECT count(*) FROM g.charges"),
                asked=_one(db, "SELECT count(*) FROM g.requests"),
                per_second=recent / RATE_OVER_S,
                duplicates=_one(db, "SELECT count(*) FROM events WHERE kind = 'duplicate'"),
                crashes=_one(db, "SELECT count(*) FROM events WHERE kind = 'crashed'"),
                running=tuple(_running(db)),
                kills=tuple(Kill(*row) for row in db.execute(_KILLS)),
            )

    def running(self) -> list[Running]:
        """Only what runs now: quick, for whoever waits for a certain instant."""
        with self.open() as db:
            return _running(db)

    def ready(self) -> set[str]:
        """Names of the workers that have said that they are ready."""
        with self.open() as db:
            return {row[0] for row in db.execute("SELECT worker FROM events WHERE kind = 'ready'")}

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """A connection to the books, with the gateway's tables under ``g``."""
        with closing(sqlite3.connect(self._books, timeout=30)) as db:
            db.execute("ATTACH ? AS g", (str(self._gateway),))
            yield db


def _running(db: sqlite3.Connection) -> list[Running]:
    return [
        Running(worker, pid, order_id, _phase(outcome, answered_at))
        for worker, pid, order_id, outcome, answered_at in db.execute(_RUNNING)
    ]


def _phase(outcome: str | None, answered_at: float | None) -> str:
    if outcome is None:
        return "checking"
    if answered_at is not None:
        return "answered"
    return "asking" if outcome == "working" else "charged"


def _one(db: sqlite3.Connection, query: str, *values: Any) -> int:
    return int(db.execute(query, values).fetchone()[0])
