"""What the shop's workers note down, in a file outside broker and store: it survives any kill.

``runs``: one row per run of an order's job, open until it ends. ``events``: duplicates and crashes.
Both as the package's signals tell them. ``kills``: one row per order that the demo hit.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY, order_id INTEGER, fence INTEGER, worker TEXT, pid INTEGER,
    phase TEXT, started_at REAL, ended_at REAL, outcome TEXT
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, at REAL, kind TEXT, order_id INTEGER, task_id TEXT, worker TEXT,
    pid INTEGER
);
CREATE TABLE IF NOT EXISTS kills (
    id INTEGER PRIMARY KEY, at REAL, what TEXT, worker TEXT, pid INTEGER, order_id INTEGER,
    moment TEXT
);
"""


#: the newest run of an order in one process
_MINE = """WHERE id = (SELECT max(id) FROM runs WHERE order_id = ? AND worker = ? AND pid = ?)"""


@dataclass(frozen=True, slots=True)
class Hit:
    """Where an order was when its process was killed."""

    worker: str
    pid: int
    order_id: int
    moment: str


class Books:
    """One file; a connection per use, so that it may be used from any process and thread."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def create(self) -> Books:
        """Make the tables."""
        with closing(sqlite3.connect(self.path)) as db:
            db.executescript(SCHEMA)
        return self

    def begin(self, order_id: int, fence: int) -> None:
        """A run of an order's job has begun. It stays open when its process is killed."""
        self._write(
            "INSERT INTO runs (order_id, fence, worker, pid, started_at) VALUES (?, ?, ?, ?, ?)",
            order_id, fence, *me(), time.time(),
        )  # fmt: skip

    def step(self, order_id: int, phase: str) -> None:
        """Where this process's run of the order is now."""
        self._write(f"UPDATE runs SET phase = ? {_MINE}", phase, order_id, *me())

    def end(self, order_id: int, outcome: str) -> None:
        """This process's run of the order has ended: completed, retry, failure or release."""
        self._write(
            f"UPDATE runs SET ended_at = ?, outcome = ? {_MINE}",
            time.time(), outcome, order_id, *me(),
        )  # fmt: skip

    def event(self, kind: str, order_id: int = 0, task_id: str = "") -> None:
        """Something that happened in this process."""
        self._write(
            "INSERT INTO events (at, kind, order_id, task_id, worker, pid) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            time.time(), kind, order_id, task_id, *me(),
        )  # fmt: skip

    def kill(self, what: str, at: float, hit: Hit) -> None:
        """An order that is hit by the kill of its process, or of its whole worker."""
        self._write(
            "INSERT INTO kills (at, what, worker, pid, order_id, moment) VALUES (?, ?, ?, ?, ?, ?)",
            at, what, hit.worker, hit.pid, hit.order_id, hit.moment,
        )  # fmt: skip

    def _write(self, statement: str, *values: Any) -> int:
        with closing(sqlite3.connect(self.path, timeout=30)) as db, db:
            # no wait for the disk: what a killed process wrote is safe in the kernel's hands
            db.execute("PRAGMA synchronous = OFF")
            return db.execute(statement, values).lastrowid or 0


def me() -> tuple[str, int]:
    """This process: its worker's name and its own pid."""
    return worker_name(), os.getpid()


def worker_name() -> str:
    """The name that the demo gave to this worker."""
    return os.environ.get("SHOP_WORKER", "")
