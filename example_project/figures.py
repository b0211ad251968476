"""Looks into the books of the shop and of the outside world; changes nothing."""

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
    """An order that some process works on now."""

    worker: str
    pid: int
    order_id: int
    phase: str  #: one of PHASES


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of an order's job, as it can be seen from outside."""

    shown: str
    moment: str  #: what a kill there interrupts
    step: str = ""  #: the step that it is inside of


PHASES = {
    "begun": Phase("begun", "not entered yet"),
    "ordering": Phase("writing its row", "its row written and not committed", "order"),
    "entered": Phase("entered", "entered, card not charged yet"),
    "asking": Phase("charging the card", "card just being charged", "charge"),
    "charged": Phase("charged, not told yet", "card charged, worker not told yet", "charge"),
    "paid": Phase("paid", "card charged, its mail not seen yet"),
    "mailed": Phase("mailed, not told yet", "mail sent, worker not told yet", "mail"),
    "finishing": Phase("finishing", "mail sent"),
}


#: A worker that is killed here may have sent a mail that is not recorded as sent: from outside
#: nobody sees the instant before the request arrives, nor the one after its answer.
MAIL_MAY_BE_OUT = ("paid", "mailed", "finishing")


@dataclass(frozen=True, slots=True)
class Kill:
    """An order whose process was killed, and how long it took to come back."""

    at: float
    what: str  #: worker, child
    worker: str
    pid: int
    order_id: int
    moment: str
    noticed_s: float | None  #: until its claim was free
    restarted_s: float | None  #: until its job was begun again, by another process
    recovered_s: float | None  #: until it was done


@dataclass(frozen=True, slots=True)
class Figures:
    """One look at everything."""

    done: int
    charges: int
    mails: int
    per_second: float
    duplicates: int
    crashes: int
    running: tuple[Running, ...]
    kills: tuple[Kill, ...]

    @property
    def recovered(self) -> int:
        """Killed orders that are done by now."""
        return sum(kill.recovered_s is not None for kill in self.kills)


_RUNNING = """
SELECT r.worker, r.pid, r.order_id, r.phase,
       (SELECT outcome FROM g.requests q WHERE q.order_id = r.order_id AND q.fence = r.fence),
       (SELECT answered_at FROM g.requests q WHERE q.order_id = r.order_id AND q.fence = r.fence),
       m.id, m.answered_at
FROM runs r
LEFT JOIN g.mails m ON m.order_id = r.order_id AND m.sent_at > r.started_at
WHERE r.ended_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM kills k WHERE k.worker = r.worker AND (k.what = 'worker' OR k.pid = r.pid)
)
ORDER BY r.worker, r.pid
"""

# A process that is killed between the record "done" and its note in the books leaves its run open.
# That the order is done is seen by the next delivery, which is answered and not run.
_DONE = """
SELECT order_id, ended_at AS at FROM runs WHERE outcome = 'completed'
UNION ALL
SELECT order_id, at FROM events WHERE kind IN ('duplicate', 'redelivered')
"""

_KILLS = f"""
SELECT k.at, k.what, k.worker, k.pid, k.order_id, k.moment,
       (SELECT min(at) FROM events WHERE kind = 'crashed' AND order_id = k.order_id AND at > k.at)
       - k.at,
       (SELECT min(started_at) FROM runs WHERE order_id = k.order_id AND started_at > k.at) - k.at,
       (SELECT min(at) FROM ({_DONE}) d WHERE d.order_id = k.order_id AND d.at > k.at) - k.at
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
            recent = _one(
                db, "SELECT count(*) FROM runs WHERE outcome = 'completed' AND ended_at > ?", since
            )
            return Figures(
                done=_one(db, f"SELECT count(DISTINCT order_id) FROM ({_DONE})"),
                charges=_one(db, "SELECT count(*) FROM g.charges"),
                mails=_one(db, "SELECT count(*) FROM g.mails"),
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
        """A connection to the books, with the outside world's tables under ``g``."""
        with closing(sqlite3.connect(self._books, timeout=30)) as db:
            db.execute("ATTACH ? AS g", (str(self._gateway),))
            yield db


def _running(db: sqlite3.Connection) -> list[Running]:
    return [
        Running(worker, pid, order_id, _phase(*seen))
        for worker, pid, order_id, *seen in db.execute(_RUNNING)
    ]


def _phase(
    noted: str | None, charge: str | None, charge_answered: float | None,
    mail: int | None, mail_answered: float | None,
) -> str:  # fmt: skip
    """The last of the steps that left a trace."""
    if mail is not None:
        return "mailed" if mail_answered is None else "finishing"
    if charge is None:
        return noted or "begun"
    if charge_answered is not None:
        return "paid"
    return "asking" if charge == "working" else "charged"


def _one(db: sqlite3.Connection, query: str, *values: Any) -> int:
    return int(db.execute(query, values).fetchone()[0])
