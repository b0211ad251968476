"""The outside world: a payment gateway and a mail provider, in a process of their own.

The gateway takes an ``Idempotency-Key`` as payment APIs do; the mail provider takes none, as mail
providers do. Both write down every request in a database of their own, so that anyone can count:
how often they were asked, how many cards were charged, how many mails went out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sqlite3
import threading
import time
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: The world takes its time before and after it has done something, in seconds, at random between.
PAUSE_S = (0.03, 0.08)
#: A card that is asked for more is declined.
LIMIT_CENTS = 1_000_000

SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY, key TEXT, order_id INTEGER, cents INTEGER, fence INTEGER,
    asked_at REAL, answered_at REAL, outcome TEXT DEFAULT 'working'
);
CREATE TABLE IF NOT EXISTS charges (
    key TEXT PRIMARY KEY, order_id INTEGER, cents INTEGER, fence INTEGER, receipt TEXT,
    charged_at REAL
);
CREATE TABLE IF NOT EXISTS mails (
    id INTEGER PRIMARY KEY, message_id TEXT, order_id INTEGER, sent_at REAL, answered_at REAL
);
"""


@dataclass(frozen=True, slots=True)
class Request:
    """One charge that the gateway was asked for."""

    key: str
    order_id: int
    cents: int
    fence: int


class Bank:
    """The world's database. Every change is one transaction."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.executescript(SCHEMA)

    def note(self, request: Request) -> int:
        """Write down that it was asked; returns the request's number."""
        return self._write(
            "INSERT INTO requests (key, order_id, cents, fence, asked_at) VALUES (?, ?, ?, ?, ?)",
            request.key, request.order_id, request.cents, request.fence, time.time(),
        ).lastrowid or 0  # fmt: skip

    def move_money(self, request: Request) -> tuple[str, str]:
        """Charge the card once per key; returns the outcome and the receipt."""
        if request.cents > LIMIT_CENTS:
            return "declined", ""
        receipt = uuid.uuid4().hex[:12]
        new = self._write(
            "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
            request.key, request.order_id, request.cents, request.fence, receipt, time.time(),
        ).rowcount  # fmt: skip
        if new:
            return "charged", receipt
        # a holder that lost its lease comes with an older fence than the one that took over
        newest = self._write(
            "UPDATE charges SET fence = ? WHERE key = ? AND fence <= ?",
            request.fence, request.key, request.fence,
        ).rowcount  # fmt: skip
        if not newest:
            return "stale", ""
        found = self._write("SELECT receipt FROM charges WHERE key = ?", request.key).fetchone()
        return "repeat", str(found[0])

    def outcome(self, number: int, outcome: str) -> None:
        """Note what became of the request, before it is answered."""
        self._write("UPDATE requests SET outcome = ? WHERE id = ?", outcome, number)

    def answered(self, number: int) -> None:
        """Note that its answer was sent."""
        self._write("UPDATE requests SET answered_at = ? WHERE id = ?", time.time(), number)

    def send_mail(self, message_id: str, order_id: int) -> int:
        """A mail is out; returns its number."""
        return self._write(
            "INSERT INTO mails (message_id, order_id, sent_at) VALUES (?, ?, ?)",
            message_id, order_id, time.time(),
        ).lastrowid or 0  # fmt: skip

    def mail_answered(self, number: int) -> None:
        """Note that whoever sent the mail was told so."""
        self._write("UPDATE mails SET answered_at = ? WHERE id = ?", time.time(), number)

    def _write(self, statement: str, *values: Any) -> sqlite3.Cursor:
        with self._lock:
            return self._db.execute(statement, values)


class Handler(BaseHTTPRequestHandler):
    """``POST /charges``: 200 with the receipt, 402 for a declined card, 409 for a fence that is
    older than one seen. ``POST /mails``: 200. ``POST /mood``: ``{"down": true}`` makes every
    further answer a 503, until it is told otherwise."""

    bank: Bank
    down = False

    def do_POST(self) -> None:
        data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/mood":
            Handler.down = bool(data["down"])
            self._answer(200, {})
        elif Handler.down:
            self._answer(503, {"error": "closed for maintenance"})
        elif self.path == "/charges":
            self._charge(data)
        elif self.path == "/mails":
            self._mail(data)
        else:
            self._answer(404, {"error": f"there is no {self.path}"})

    def _charge(self, data: dict[str, Any]) -> None:
        request = Request(
            self.headers["Idempotency-Key"], data["order"], data["cents"],
            int(self.headers["X-Fence"]),
        )  # fmt: skip
        number = self.bank.note(request)
        _pause()
        outcome, receipt = self.bank.move_money(request)
        self.bank.outcome(number, outcome)
        _pause()
        match outcome:
            case "declined":
                self._answer(402, {"error": f"declined: {request.cents} cents are over the limit"})
            case "stale":
                self._answer(409, {"error": f"{request.key}: a later holder has been here"})
            case _:
                self._answer(200, {"receipt": receipt})
        self.bank.answered(number)

    def _mail(self, data: dict[str, Any]) -> None:
        headers = data["headers"]
        number = self.bank.send_mail(headers.get("Message-ID", ""), int(headers.get("X-Order", 0)))
        _pause()
        self._answer(200, {})
        self.bank.mail_answered(number)

    def _answer(self, status: int, answer: dict[str, str]) -> None:
        body = json.dumps(answer).encode()
        with contextlib.suppress(OSError):  # whoever asked may be dead by now
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: the database tells it all."""


def _pause() -> None:
    time.sleep(random.uniform(*PAUSE_S))


def main() -> None:
    """Serve on a free loopback port; the first line of output is the address."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    Handler.bank = Bank(parser.parse_args().database)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
