"""The ledger tells when the promise did not hold: its exit status is worth something."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from example_project.books import Books, Hit
from example_project.customers import Customers
from example_project.figures import PHASES, Reader
from example_project.gateway import Bank, Request
from example_project.ledger import Ledger, settle_up
from example_project.stockroom import Stock

CENTS = 500
MAILED = PHASES["mailed"].moment


@dataclass
class Day:
    """A day in the shop, written down by hand."""

    folder: Path
    orders: int = 3

    def __post_init__(self) -> None:
        self.books = Books(self.folder / "books.sqlite3").create()
        self.bank = Bank(self.folder / "gateway.sqlite3")
        self.customers = Customers(self.orders, per_second=10, seed=0)
        self.receipts: dict[int, str] = {}
        self.taken = 0

    def order(self, order_id: int) -> None:
        """One that goes well: run once, charged and mailed once, both clicks answered."""
        self.run(order_id)
        self.books.end(order_id, "completed")

    def run(self, order_id: int, fence: int = 1) -> None:
        """A run that is left open."""
        self.books.begin(order_id, fence)
        if order_id not in self.receipts:
            self.taken += 1
        receipt = self.receipts[order_id] = self.charge(order_id, fence=fence)
        self.mail(order_id)
        self.customers.prices[order_id] = CENTS
        self.customers.receipts[order_id] = [receipt, receipt]

    def mail(self, order_id: int) -> None:
        self.bank.mail_answered(self.bank.send_mail(f"<{order_id}>", order_id))

    def charge(self, order_id: int, key: str = "", fence: int = 1) -> str:
        request = Request(key or f"charge:{order_id}", order_id, CENTS, fence)
        number = self.bank.note(request)
        outcome, receipt = self.bank.move_money(request)
        self.bank.outcome(number, outcome)
        self.bank.answered(number)
        return receipt

    def evening(self, kills_wanted: int = 0) -> Ledger:
        reader = Reader(self.books.path, self.folder / "gateway.sqlite3")
        stock = Stock(self.receipts, self.taken)
        return settle_up(self.customers, reader, stock, kills_wanted, took_s=1.0)


@pytest.fixture
def day(tmp_path: Path) -> Day:
    it = Day(tmp_path)
    for order_id in (1, 2, 3):
        it.order(order_id)
    return it


def test_a_good_day(day):
    ledger = day.evening()

    assert ledger.held
    assert (ledger.orders, ledger.charges, ledger.asked, ledger.duplicates) == (3, 3, 3, 3)
    assert ledger.charged_cents == ledger.ordered_cents == 1500


def test_a_second_charge_of_one_order_is_seen(day):
    day.charge(2, key="another key")

    ledger = day.evening()

    assert "1 order(s) charged twice: 2" in ledger.faults
    assert ledger.charged_cents == 2000


def test_a_second_request_without_a_second_run_is_seen(day):
    day.charge(2)

    assert day.evening().faults == ("1 order(s) asked for more often than they were run: 2",)


def test_a_second_run_without_a_crash_is_seen(day):
    day.books.begin(2, fence=2)
    day.charge(2, fence=2)

    assert day.evening().faults == ("1 order(s) run again without a crash: 2",)


def test_a_second_run_after_a_crash_is_right(day, monkeypatch):
    monkeypatch.setenv("SHOP_WORKER", "worker-1")
    day.run(4)
    day.books.kill("worker", time.time(), Hit("worker-1", 1, 4, MAILED))
    monkeypatch.setenv("SHOP_WORKER", "worker-2")
    day.run(4, fence=2)
    day.books.end(4, "completed")
    day.customers.orders = 4

    ledger = day.evening(kills_wanted=1)

    assert ledger.faults == ()
    assert (ledger.charges, ledger.asked, ledger.repeats) == (4, 5, 1)
    assert ledger.mails == 5


def test_a_second_run_after_a_retry_is_right(day):
    day.customers.orders = 4
    day.books.begin(4, fence=1)
    day.books.end(4, "retry")
    day.order(4)

    assert day.evening().held


def test_an_order_that_is_done_and_not_noted_as_done_is_seen_by_its_next_delivery(day):
    day.books.kill("worker", time.time(), Hit("worker-1", 1, 2, PHASES["finishing"].moment))
    day.books.event("redelivered", 2)

    ledger = day.evening(1)

    assert ledger.faults == ()
    assert ledger.kills[0].recovered_s is not None


def test_a_piece_too_much_taken_from_stock_is_seen(day):
    day.taken += 1

    assert day.evening().faults == ("4 pieces taken from stock for 3 orders",)


def test_an_order_that_is_not_in_the_database_is_seen(day):
    del day.receipts[2]
    day.taken -= 1

    assert day.evening().faults == ("1 order(s) not in the database: 2",)


def test_an_order_that_is_not_paid_in_the_database_is_seen(day):
    day.receipts[2] = ""

    assert day.evening().faults == (
        "1 order(s) in the database with another receipt than the gateway's: 2",
    )


def test_a_lost_mail_is_seen(day):
    day.customers.orders = 4
    day.books.begin(4, fence=1)
    day.receipts[4] = receipt = day.charge(4)
    day.taken += 1
    day.customers.receipts[4] = [receipt, receipt]
    day.books.end(4, "completed")

    assert day.evening().faults == ("1 order(s) without a mail: 4",)


@pytest.mark.parametrize("moment", ["", PHASES["entered"].moment])
def test_a_second_mail_without_a_kill_inside_that_step_is_seen(day, moment):
    if moment:
        day.books.kill("child", time.time(), Hit("worker-1", 1, 2, moment))
        day.books.event("redelivered", 2)
    day.mail(2)

    assert day.evening().faults == ("1 order(s) mailed again without a kill inside that step: 2",)


def test_a_killed_payment_that_never_came_back_is_seen(day):
    day.books.kill("child", time.time() + 1, Hit("worker-1", 1, 2, "its card not yet charged"))

    assert day.evening(1).faults == ("1 order(s) of a killed process never finished: 2",)


def test_a_kill_that_did_not_come_about_is_seen(day):
    assert day.evening(kills_wanted=2).faults == ("only 0 of 2 kills came about",)


def test_a_lost_order_and_a_lost_answer_are_seen(day):
    day.customers.orders = 4
    day.customers.receipts[3].pop()

    assert day.evening().faults == (
        "1 order(s) never charged: 4",
        "2 order(s) without an answer to both clicks: 3, 4",
        "1 order(s) not in the database: 4",
        "1 order(s) without a mail: 4",
    )


def test_a_wrong_receipt_is_seen(day):
    day.customers.receipts[1][1] = "made up"

    [fault] = day.evening().faults

    assert fault == "1 order(s) answered with a receipt that the gateway never gave: 1"


def test_the_gateway_refuses_a_holder_that_was_overtaken(day):
    request = Request("charge:1", 1, CENTS, fence=7)
    day.bank.move_money(request)

    late = day.bank.move_money(Request("charge:1", 1, CENTS, fence=6))

    assert late == ("stale", "")
