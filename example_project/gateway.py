"""The payment provider: an HTTP service in a process of its own, with its own database.

It takes an ``Idempotency-Key`` as payment APIs do, and writes down every request, so that anyone
can count both: how often it was asked, and how many cards it charged.
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
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: The bank takes its time before and after the money has moved, in seconds, at random between.
BANK_S = (0.03, 0.08)
CLIENT_TIMEOUT_S = 10.0

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
"""


class GatewayDown(Exception):
    """The gateway did not answer; nobody knows whether the card was charged."""


class ChargeRefused(Exception):
    """The gateway said no: a later holder of the same key has been there."""


def charge(address: str, order_id: int, cents: int, *, key: str, fence: int) -> str:
    """Charge a card; returns the receipt. The same ``key`` gets the same receipt and moves no
    money again. Raises :class:`GatewayDown`, after which it may be called again."""
    body = json.dumps({"order_id": order_id, "cents": cents})
    headers = {"Idempotency-Key": key, "X-Fence": str(fence), "Content-Type": "application/json"}
    with contextlib.closing(HTTPConnection(address, timeout=CLIENT_TIMEOUT_S)) as link:
        try:
            link.request("POST", "/charges", body, headers)
            response = link.getresponse()
            answer = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            raise GatewayDown(str(error)) from error
    if response.status != 200:
        raise ChargeRefused(answer["error"])
    return str(answer["receipt"])


@dataclass(frozen=True, slots=True)
class Request:
    """One charge that the gateway was asked for."""

    key: str
    order_id: int
    cents: int
    fence: int


class Bank:
    """The gateway's database. Every change is one transaction."""

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

    def _write(self, statement: str, *values: Any) -> sqlite3.Cursor:
        with self._lock:
            return self._db.execute(statement, values)


class Handler(BaseHTTPRequestHandler):
    """``POST /charges``: 200 with the receipt, or 409 for a fence that is older than one seen."""

    bank: Bank

    def do_POST(self) -> None:
        data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = Request(
            self.headers["Idempotency-Key"], data["order_id"], data["cents"],
            int(self.headers["X-Fence"]),
        )  # fmt: skip
        number = self.bank.note(request)
        time.sleep(random.uniform(*BANK_S))
        outcome, receipt = self.bank.move_money(request)
        self.bank.outcome(number, outcome)
        time.sleep(random.uniform(*BANK_S))
        if outcome == "stale":
            self._answer(409, {"error": f"{request.key}: a later holder has been here"})
        else:
            self._answer(200, {"receipt": receipt})
        self.bank.answered(number)

    def _answer(self, status: int, answer: dict[str, str]) -> None:
        body = json.dumps(answer).encode()
        with contextlib.suppress(OSError):  # whoever asked may be dead by now
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: the database tells it all."""


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
