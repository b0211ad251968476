"""What the shop's workers note down, in a file outside broker and store: it survives any kill.

``runs``: one row per run of a payment's body, open until it ends. ``events``: duplicates and
crashes, as the package's signals tell them. ``kills``: one row per payment that the demo hit.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY, order_id INTEGER, fence INTEGER, worker TEXT, pid INTEGER,
    started_at REAL, ended_at REAL
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, at REAL, kind TEXT, key TEXT, task_id TEXT, worker TEXT, pid INTEGER
);
CREATE TABLE IF NOT EXISTS kills (
    id INTEGER PRIMARY KEY, at REAL, what TEXT, worker TEXT, pid INTEGER, order_id INTEGER,
    moment TEXT
);
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a payment was when its process was killed."""

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

    @contextmanager
    def run(self, order_id: int, fence: int) -> Iterator[None]:
        """A run of a payment's body. It stays open when its process is killed."""
        number = self._write(
            "INSERT INTO runs (order_id, fence, worker, pid, started_at) VALUES (?, ?, ?, ?, ?)",
            order_id, fence, worker_name(), os.getpid(), time.time(),
        )  # fmt: skip
        try:
            yield
        finally:
            self._write("UPDATE runs SET ended_at = ? WHERE id = ?", time.time(), number)

    def event(self, kind: str, key: str = "", task_id: str = "") -> None:
        """Something that happened in this process."""
        self._write(
            "INSERT INTO events (at, kind, key, task_id, worker, pid) VALUES (?, ?, ?, ?, ?, ?)",
            time.time(), kind, key, task_id, worker_name(), os.getpid(),
        )  # fmt: skip

    def kill(self, what: str, at: float, hit: Hit) -> None:
        """A payment that is hit by the kill of its process, or of its whole worker."""
        self._write(
            "INSERT INTO kills (at, what, worker, pid, order_id, moment) VALUES (?, ?, ?, ?, ?, ?)",
            at, what, hit.worker, hit.pid, hit.order_id, hit.moment,
        )  # fmt: skip

    def _write(self, statement: str, *values: Any) -> int:
        with closing(sqlite3.connect(self.path, timeout=30)) as db, db:
            # no wait for the disk: what a killed process wrote is safe in the kernel's hands
            db.execute("PRAGMA synchronous = OFF")
            return db.execute(statement, values).lastrowid or 0


def worker_name() -> str:
    """The name that the demo gave to this worker."""
    return os.environ.get("SHOP_WORKER", "")
