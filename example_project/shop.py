"""The shop: one Celery app, one task. ``celery -A example_project.shop worker -Q payments``."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from celery_idem import IdempotentTask, signals
from example_project import gateway
from example_project.books import Books

BROKER = os.environ.get("SHOP_BROKER", "redis://localhost:6379/0")
GATEWAY = os.environ.get("SHOP_GATEWAY", "localhost:8000")
BOOKS = Books(os.environ.get("SHOP_BOOKS", "books.sqlite3"))

#: How long the shop looks at an order before it charges the card, in seconds.
CHECK_S = (0.03, 0.10)

app = Celery("shop", broker=BROKER, backend=BROKER)
app.conf.update(
    task_default_queue="payments",
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    # 30 s are right for most: they survive a long pause of a worker. A demo's public has less
    # patience, and these payments are done in a quarter of a second.
    idem={"lease_s": 5},
)


@app.task(
    base=IdempotentTask, bind=True, name="shop.pay", idem_key="order:{order_id}",
    autoretry_for=(gateway.GatewayDown,), retry_backoff=True, max_retries=8,
)  # fmt: skip
def pay(self: Any, order_id: int, cents: int) -> str:
    """Charge the card for an order; returns the receipt.

    A worker may die after the card was charged and before anybody here knows it. Then the
    payment is asked for again, and it is the gateway's memory of the key that keeps the money
    where it is: so every call of a payment API carries a key that is the same in every run.
    """
    with BOOKS.run(order_id, self.fence):
        check(order_id)
        return gateway.charge(GATEWAY, order_id, cents, key=f"charge:{order_id}", fence=self.fence)


def check(order_id: int) -> None:
    """Is there enough in stock, is the customer who they say they are?"""
    time.sleep(random.uniform(*CHECK_S))


# --- for the demo's view: what the package tells ------------------------------------------


@signals.duplicate.connect
def _note_duplicate(key: str = "", task_id: str = "", done_by: str = "", **_: Any) -> None:
    # the same task id again is a redelivery, not a second order
    BOOKS.event("duplicate" if task_id != done_by else "redelivered", key, task_id)


@signals.crashed.connect
def _note_crash(key: str = "", task_id: str = "", **_: Any) -> None:
    BOOKS.event("crashed", key, task_id)


@worker_ready.connect
def _note_ready(**_: Any) -> None:
    BOOKS.event("ready")
