"""The customers: a steady stream of orders, each of them sent twice, and what they are answered."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from example_project.stockroom import PRODUCTS

#: Pause between two looks at the answers that are still missing, in seconds.
LOOK_EVERY_S = 0.1
#: Clicks without an answer, above which nobody comes in: a slow machine has no endless queue.
PATIENT = 50


@dataclass(frozen=True, slots=True, order=True)
class Click:
    """One press on the button "buy"; the second of an order is an impatient one."""

    at_s: float
    order_id: int
    product: str
    cents: int


@dataclass(slots=True)
class Customers:
    """Plays the clicks of ``orders`` orders, ``per_second`` of them, then waits for answers."""

    orders: int
    per_second: float
    seed: int
    stop: Event = field(default_factory=Event)
    prices: dict[int, int] = field(default_factory=dict)
    #: order → receipt of each answered click
    receipts: dict[int, list[str]] = field(default_factory=dict)
    clicks: int = 0
    answers: int = 0
    complaints: list[str] = field(default_factory=list)

    def plan(self) -> list[Click]:
        """All clicks in order of time; the same for the same seed."""
        dice = random.Random(self.seed)
        plan = []
        for order_id in range(1, self.orders + 1):
            at_s = order_id / self.per_second
            # half of the customers are so impatient that the first click is still being served
            pause_s = dice.uniform(0.02, 0.2) if dice.random() < 0.5 else dice.uniform(0.5, 3.0)
            product, cents = dice.choice(list(PRODUCTS.items()))
            plan += [Click(at, order_id, product, cents) for at in (at_s, at_s + pause_s)]
        return sorted(plan)

    def play(self, complete_order: Any) -> None:
        """Send every click in its time, and look for the answers until all are there."""
        begun = time.monotonic()
        open_: list[tuple[int, Any]] = []
        for click in self.plan():
            while (left_s := begun + click.at_s - time.monotonic()) > 0 or len(open_) > PATIENT:
                open_ = self._collect(open_)
                if self.stop.wait(min(max(left_s, 0.01), LOOK_EVERY_S)):
                    return
            self.prices[click.order_id] = click.cents
            sent = complete_order.delay(click.order_id, click.product, click.cents)
            open_.append((click.order_id, sent))
            self.clicks += 1
        while open_ and not self.stop.wait(LOOK_EVERY_S):
            open_ = self._collect(open_)

    def _collect(self, open_: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        still = []
        for order_id, result in open_:
            if not result.ready():
                still.append((order_id, result))
                continue
            self.answers += 1
            if result.successful():
                self.receipts.setdefault(order_id, []).append(result.result)
            else:
                self.complaints.append(f"order {order_id}: {result.state} {result.result}")
        return still
