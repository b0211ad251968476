"""The shop as the demo's workers run it: the same app, watched from outside.

``celery -A example_project.watched_shop worker``: nothing in the shop knows that it is watched.
What the package's signals and Django's tell is noted in the demo's books.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery.signals import celeryd_after_setup, worker_ready
from django.db import transaction
from django.db.models.signals import post_save

from celery_idem import signals
from example_project.books import Books
from example_project.shop import app

__all__ = ["app"]

BOOKS = Books(os.environ.get("SHOP_BOOKS", "books.sqlite3"))
#: How long a transaction stays open after the order's row is written, in seconds: the time that
#: another machine's database would take.
DATABASE_S = 0.008


def order_of(key: str) -> int:
    """``shop.complete_order:order:17`` → 17; 0 for another task's key."""
    task, _, rest = key.partition(":order:")
    return int(rest) if task == "shop.complete_order" and rest.isdigit() else 0


@signals.claimed.connect
def _begun(key: str = "", fence: int = 0, **_: Any) -> None:
    if order_id := order_of(key):
        BOOKS.begin(order_id, fence)


@signals.completed.connect
def _completed(key: str = "", **_: Any) -> None:
    if order_id := order_of(key):
        BOOKS.end(order_id, "completed")


@signals.released.connect
def _released(key: str = "", ending: str = "", **_: Any) -> None:
    if order_id := order_of(key):
        BOOKS.end(order_id, ending)


@signals.duplicate.connect
def _duplicate(key: str = "", task_id: str = "", done_by: str = "", **_: Any) -> None:
    # the same task id again is a redelivery, not a second order
    kind = "duplicate" if task_id != done_by else "redelivered"
    BOOKS.event(kind, order_of(key), task_id)


@signals.crashed.connect
def _crashed(key: str = "", task_id: str = "", **_: Any) -> None:
    BOOKS.event("crashed", order_of(key), task_id)


@worker_ready.connect
def _ready(**_: Any) -> None:
    BOOKS.event("ready")


@celeryd_after_setup.connect
def _watch_orders(**_: Any) -> None:
    from example_project.shop.models import Order

    post_save.connect(_row_written, sender=Order)


def _row_written(instance: Any = None, **_: Any) -> None:
    """The order's row is written, and its transaction still open."""
    number = instance.number
    BOOKS.step(number, "ordering")
    transaction.on_commit(lambda: BOOKS.step(number, "entered"))
    time.sleep(DATABASE_S)
