"""Watch workers being killed inside each step of an order, and every order being done once.

A private Redis-compatible server, a payment gateway with a database of its own, the shop's database
and two workers are started on free loopback ports; nothing is left of them afterwards. The exit
status is 0 when the promise held: nothing lost, nothing paid twice.
"""

from __future__ import annotations

import argparse
import gc
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any, NoReturn

from example_project import stockroom
from example_project.books import Books
from example_project.chaos import BLOWS, Chaos
from example_project.customers import Customers
from example_project.family import Family
from example_project.figures import Reader
from example_project.ledger import Ledger, settle_up
from example_project.premises import CHILDREN, Premises
from example_project.view import Scene, View, view_for

#: Orders a second for each worker: an order takes about a quarter of a second.
ORDERS_PER_WORKER_S = 5.0
#: Seconds without any answer after which it is taken for lost.
ANSWER_DEADLINE_S = 45.0
FRAME_S = 0.12
#: Fewer orders are over before anything could be killed.
FEWEST_ORDERS = 40


class Played(Thread):
    """A thread whose error is not lost."""

    def __init__(self, play: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._play = play
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._play()
        except Exception as error:
            self.error = error

    def over(self) -> bool:
        """Whether it has ended. Raises what it raised."""
        if self.error is not None:
            raise self.error
        return not self.is_alive()


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 when the promise held, 1 when not, 130 when interrupted."""
    options = read_options(argv)
    signal.signal(signal.SIGTERM, _leave)
    view = view_for()
    folder = Path(tempfile.mkdtemp(prefix="shop-"))
    keep = True
    try:
        ledger = play(options, folder, view)
        view.reckon(ledger)
        keep = not ledger.held
    except KeyboardInterrupt:
        keep = False
        view.close()
        view.say("interrupted; everything that was started is ended")
        return 130
    except SystemExit:
        keep = False
        raise
    except RuntimeError as error:
        view.close()
        view.say(str(error))
        return 1
    finally:
        if keep:
            view.say(f"logs and databases: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if ledger.held else 1


def play(options: argparse.Namespace, folder: Path, view: View) -> Ledger:
    """The whole demo, from the first process to the last."""
    begun = time.monotonic()
    with Family() as family:
        # 30 s are right for most: they survive a long pause of a worker. A demo's public has less
        # patience, and these orders are done in a quarter of a second.
        shop = Premises(folder, family, settings={"SHOP_LEASE_S": "5"})
        reader = Reader(shop.books, shop.gateway)
        try:
            view.say(f"starting a server, a gateway, a database and {options.workers} workers ...")
            shop.open(options.workers, options.database)
            shop.wait_ready(reader)
            view.say(
                f"{options.orders} orders are coming, each of them twice (seed {options.seed})"
            )
            customers = trade(options, shop, reader, view)
        finally:
            view.close()
        kills = 0 if options.no_faults else len(BLOWS)
        return settle_up(customers, reader, stockroom.count(), kills, time.monotonic() - begun)


def trade(options: argparse.Namespace, shop: Premises, reader: Reader, view: View) -> Customers:
    """Orders come in, workers are killed, until every customer has an answer or time is over."""
    stop = Event()
    per_second = ORDERS_PER_WORKER_S * options.workers
    customers = Customers(options.orders, per_second, options.seed, stop)
    # as the shop's web site would import it; its settings read what the premises have set
    from example_project.shop.tasks import complete_order

    threads = [Played(lambda: customers.play(complete_order))]
    if not options.no_faults:
        chaos = Chaos(
            reader, Books(shop.books), shop.pids, CHILDREN, options.orders, options.seed, stop
        )
        threads.append(Played(chaos.play))
    wall, answers, heard = time.time(), 0, time.monotonic()
    for thread in threads:
        thread.start()
    try:
        while not _over(threads) and time.monotonic() < heard + ANSWER_DEADLINE_S:
            if customers.answers > answers:
                answers, heard = customers.answers, time.monotonic()
            shop.replace_the_dead()
            view.show(_scene(wall, options.orders, customers, shop, reader))
            time.sleep(FRAME_S)
        view.show(_scene(wall, options.orders, customers, shop, reader))
    finally:
        stop.set()
        for thread in threads:
            thread.join(2)
        # Celery 5.5 asks the server when a result is forgotten, for minutes when it is gone
        gc.collect()
    return customers


def _over(threads: list[Played]) -> bool:
    # all are asked, for their errors; the customers' answers are what is waited for
    over = [thread.over() for thread in threads]
    return over[0]


def _scene(wall: float, orders: int, customers: Customers, shop: Premises, reader: Reader) -> Scene:
    return Scene(
        wall, time.time() - wall, orders, customers.clicks, customers.answers, shop.pids(),
        reader.look(),
    )  # fmt: skip


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=__doc__)
    parser.add_argument(
        "--orders", type=int, default=300, help=f"at least {FEWEST_ORDERS}; default 300"
    )
    parser.add_argument("--seed", type=int, help="for the same orders and pauses again")
    parser.add_argument("--workers", type=int, default=2, help="default 2, of 2 processes each")
    parser.add_argument(
        "--database", default="", help="a URL, postgresql://... or mysql://...; default: SQLite"
    )
    parser.add_argument("--no-faults", action="store_true", help="kill nothing")
    options = parser.parse_args(argv)
    if options.orders < FEWEST_ORDERS:
        parser.error(f"--orders must be at least {FEWEST_ORDERS}")
    if options.workers < 1:
        parser.error("--workers must be at least 1")
    if options.seed is None:
        options.seed = secrets.randbelow(1_000_000)
    return options


def _leave(*_: Any) -> NoReturn:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
