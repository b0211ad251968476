"""The reckoning: what was ordered, what was charged, and whether the promise held."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass

from example_project.customers import Customers
from example_project.figures import MAIL_MAY_BE_OUT, PHASES, Figures, Kill, Reader
from example_project.stockroom import Stock

#: Order numbers that a sentence names before it says "and more".
NAMED_AT_MOST = 5


@dataclass(frozen=True, slots=True)
class Ledger:
    """The final figures, and a sentence for everything that should not be so."""

    orders: int
    clicks: int
    answers: int
    duplicates: int  #: second clicks that got the receipt of the first
    charges: int
    entered: int  #: orders in the shop's database
    taken: int  #: pieces taken from stock
    mails: int
    asked: int  #: requests at the gateway
    repeats: int  #: of them for a card that was charged already
    ordered_cents: int
    charged_cents: int
    runs: int
    crashes: int
    kills: tuple[Kill, ...]
    took_s: float
    faults: tuple[str, ...]

    @property
    def held(self) -> bool:
        return not self.faults


def settle_up(
    customers: Customers, reader: Reader, stock: Stock, kills_wanted: int, took_s: float
) -> Ledger:
    """Compare what the customers were told with what the gateway, the mail provider and the
    shop's database wrote down."""
    figures = reader.look()
    with reader.open() as db:
        receipts: dict[int, str] = dict(db.execute("SELECT order_id, receipt FROM g.charges"))
        return Ledger(
            orders=customers.orders,
            clicks=customers.clicks,
            answers=customers.answers,
            duplicates=sum(len(got) - 1 for got in customers.receipts.values()),
            charges=figures.charges,
            entered=len(stock.receipts),
            taken=stock.taken,
            mails=figures.mails,
            asked=_number(db, "SELECT count(*) FROM g.requests"),
            repeats=_number(db, "SELECT count(*) FROM g.requests WHERE outcome = 'repeat'"),
            ordered_cents=sum(customers.prices.values()),
            charged_cents=_number(db, "SELECT coalesce(sum(cents), 0) FROM g.charges"),
            runs=_number(db, "SELECT count(*) FROM runs"),
            crashes=figures.crashes,
            kills=figures.kills,
            took_s=took_s,
            faults=(
                *_unserved(customers, receipts),
                *_misentered(customers, receipts, stock),
                *_overserved(db),
                *_mismailed(customers, db),
                *_unrecovered(figures, kills_wanted),
            ),
        )


def _unserved(customers: Customers, receipts: dict[int, str]) -> list[str]:
    """What was lost, or answered wrongly."""
    faults = [f"a customer was told: {complaint}" for complaint in customers.complaints]
    wanted = range(1, customers.orders + 1)
    faults += _say("never charged", [n for n in wanted if n not in receipts])
    unanswered = [n for n in wanted if len(customers.receipts.get(n, ())) < 2]
    faults += _say("without an answer to both clicks", unanswered)
    wrong = [n for n, got in customers.receipts.items() if set(got) != {receipts.get(n)}]
    return faults + _say("answered with a receipt that the gateway never gave", wrong)


def _misentered(customers: Customers, receipts: dict[int, str], stock: Stock) -> list[str]:
    """The first step, and the fenced row: exactly once, wherever a worker was killed."""
    wanted = range(1, customers.orders + 1)
    faults = _say("not in the database", [n for n in wanted if n not in stock.receipts])
    unpaid = [n for n, receipt in stock.receipts.items() if receipt != receipts.get(n)]
    faults += _say("in the database with another receipt than the gateway's", unpaid)
    if stock.taken != len(stock.receipts):
        faults.append(f"{stock.taken} pieces taken from stock for {len(stock.receipts)} orders")
    return faults


def _overserved(db: sqlite3.Connection) -> list[str]:
    """What was done twice: a second run needs a killed first one to be right, a second request
    at the gateway needs a second run, and a second charge is never right."""
    twice = _orders(db, "SELECT order_id FROM g.charges GROUP BY order_id HAVING count(*) > 1")
    idle = _orders(
        db,
        """
        SELECT r.order_id FROM runs r
        WHERE EXISTS (SELECT 1 FROM runs l WHERE l.order_id = r.order_id AND l.id > r.id)
        AND r.outcome IS NOT 'retry' AND NOT EXISTS (SELECT 1 FROM kills k WHERE k.worker = r.worker
                        AND (k.what = 'worker' OR k.pid = r.pid))
        """,
    )
    pushy = _orders(
        db,
        """
        SELECT order_id FROM g.requests q GROUP BY order_id
        HAVING count(*) > (SELECT count(*) FROM runs r WHERE r.order_id = q.order_id)
        """,
    )
    return [
        *_say("charged twice", twice),
        *_say("run again without a crash", idle),
        *_say("asked for more often than they were run", pushy),
    ]


def _mismailed(customers: Customers, db: sqlite3.Connection) -> list[str]:
    """Each order's mail went out, and again only where a worker was killed inside that step."""
    sent: dict[int, int] = dict(
        db.execute("SELECT order_id, count(*) FROM g.mails GROUP BY order_id")
    )
    inside = {PHASES[phase].moment for phase in MAIL_MAY_BE_OUT}
    killed = Counter(
        order_id
        for order_id, moment in db.execute("SELECT order_id, moment FROM kills")
        if moment in inside
    )
    wanted = range(1, customers.orders + 1)
    again = [n for n, times in sent.items() if times > 1 + killed[n]]
    return [
        *_say("without a mail", [n for n in wanted if n not in sent]),
        *_say("mailed again without a kill inside that step", again),
    ]


def _unrecovered(figures: Figures, kills_wanted: int) -> list[str]:
    faults = _say(
        "of a killed process never finished",
        [kill.order_id for kill in figures.kills if kill.recovered_s is None],
    )
    kills = len({kill.at for kill in figures.kills})
    if kills < kills_wanted:
        faults.append(f"only {kills} of {kills_wanted} kills came about")
    return faults


def _say(what: str, orders: list[int]) -> list[str]:
    if not orders:
        return []
    named = ", ".join(map(str, orders[:NAMED_AT_MOST]))
    more = ", ..." if len(orders) > NAMED_AT_MOST else ""
    return [f"{len(orders)} order(s) {what}: {named}{more}"]


def _orders(db: sqlite3.Connection, query: str) -> list[int]:
    return [row[0] for row in db.execute(query)]


def _number(db: sqlite3.Connection, query: str) -> int:
    return int(db.execute(query).fetchone()[0])
