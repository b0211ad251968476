"""The customers: a steady stream of jobs, some of them sent twice."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.effects import Effects

logger = logging.getLogger("chaos")

#: Part of the payments that are sent twice, with another task id, and those with a follow-up.
TWICE, WITH_RECEIPT = 0.25, 0.3
#: Of a hundred jobs: payments, shipments; the rest are reports.
PAYMENTS, SHIPMENTS = 70, 26
#: Every so many jobs one is of a task that the first release does not know.
PROMO_EVERY = 40
#: Jobs that may be open before the customers wait.
MOST_OPEN = 400
#: Pause before an order that could not be sent is sent again, in seconds.
AGAIN_S = 0.3


@dataclass(slots=True)
class Job:
    """One piece of work that the shop has accepted: from now on it must be done."""

    key: str
    sent: float  #: when the broker had taken it, on the ledger's clock
    task_ids: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Order:
    """One job still to be sent."""

    key: str
    task: str
    args: tuple[Any, ...]
    options: dict[str, Any]


class Tail:
    """Reads what was added to the ledger since the last look."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._at = 0
        self.finished: set[str] = set()  #: keys with a completed run

    def look(self) -> None:
        if not self._effects.path.exists():
            return
        with self._effects.path.open("rb") as ledger:
            ledger.seek(self._at)
            new = ledger.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            read = json.loads(line)
            if read["what"] == "completed":
                self.finished.add(read["key"])


class Customers(threading.Thread):
    """Sends about ``rate`` jobs a second until it is stopped; seeded, as the faults are.

    A send that fails is tried again with the same task id until the broker has taken it: only
    then the shop has said yes to its customer, and only then the job counts.
    """

    def __init__(self, module: Any, tail: Tail, rate: float, seed: int) -> None:
        super().__init__(name="customers", daemon=True)
        self.jobs: dict[str, Job] = {}
        self.refused = 0  #: sends that failed and were tried again
        self.promos = threading.Event()  #: a worker of the next release was started
        self._module = module
        self._tail = tail
        self._rate = rate
        self._dice = random.Random(f"customers/{seed}")
        self._enough = threading.Event()
        self._number = 0

    def stop(self) -> None:
        """No more orders; returns when the last one is sent."""
        self._enough.set()
        self.join(120)
        if self.is_alive():
            raise RuntimeError("the broker takes no message although everything is healed")

    def open(self) -> int:
        """Jobs that were accepted and are not known to be done."""
        return len(self.jobs.keys() - self._tail.finished)

    def run(self) -> None:
        due = time.monotonic()
        while not self._enough.is_set():
            due = max(due + self._dice.expovariate(self._rate), time.monotonic() - 1)
            if self._enough.wait(max(0.0, due - time.monotonic())):
                return
            self._tail.look()
            if self.open() < MOST_OPEN:
                self._order()

    def _order(self) -> None:
        self._number += 1
        for order in self._next(self._number):
            self._send(order)

    def _next(self, number: int) -> list[Order]:
        dice = self._dice
        if self.promos.is_set() and number % PROMO_EVERY == 0:
            headers = {"idem_key": f"promo:{number}"}
            return [Order(f"promo:{number}", "chaos.promo", (number,), {"headers": headers})]
        draw = dice.uniform(0, 100)
        if draw < PAYMENTS:
            options: dict[str, Any] = {}
            if dice.random() < WITH_RECEIPT:
                options["link"] = self._module.receipt.s(number)
            one = Order(f"pay:{number}", "chaos.pay", (number, dice.uniform(0, 0.06)), options)
            return [one, one] if dice.random() < TWICE else [one]
        if draw < PAYMENTS + SHIPMENTS:
            fails = dice.random() < 0.3
            return [Order(f"ship:{number}", "chaos.ship", (number, fails), {})]
        busy_s = dice.uniform(0.5, 8.0)
        return [Order(f"report:{number}", "chaos.report", (number, busy_s), {})]

    def _send(self, order: Order) -> None:
        task_id = str(uuid.UUID(int=self._dice.getrandbits(128), version=4))
        send = self._call(order, task_id)
        while True:
            try:
                send()
                break
            except Exception as error:  # whatever the client raises: the customer clicks again
                self.refused += 1
                logger.debug("send of %s: %s: %s", order.key, type(error).__name__, error)
                if self._enough.wait(AGAIN_S):
                    time.sleep(AGAIN_S)
        now = time.monotonic()
        job = self.jobs.setdefault(order.key, Job(order.key, now))
        job.task_ids.append(task_id)
        if "link" in order.options:
            follows = order.key.replace("pay", "receipt")
            self.jobs.setdefault(follows, Job(follows, now))

    def _call(self, order: Order, task_id: str) -> Callable[[], Any]:
        task = self._module.app.tasks.get(order.task)
        options = order.options | {"task_id": task_id, "retry": False}
        return lambda: task.apply_async(order.args, **options)
