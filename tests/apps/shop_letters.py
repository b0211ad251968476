"""A small shop on a bad night: three faults, until the test has mended the first.

Read from the environment: ``TEST_BROKER``, ``TEST_IDEM``, ``TEST_EFFECTS``, ``TEST_MENDED`` (a
file: the gateway is up again when it is there).
"""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

from celery_idem import IdempotentTask
from tests.django import ready  # noqa: F401 - a Django project
from tests.support.effects import Effects

broker = os.environ["TEST_BROKER"]
app = Celery("shop", broker=broker, backend=broker)
app.conf.update(
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    task_default_queue="normal",
    idem={"lease_s": 3, **json.loads(os.environ.get("TEST_IDEM", "{}"))},
)


class GatewayDown(Exception):
    """The payment gateway did not answer."""


class NoSuchCustomer(LookupError):
    """The customer was deleted meanwhile."""


@app.task(base=IdempotentTask, name="shop.complete_order", bind=True, idem_key="order:{order_id}",
          autoretry_for=(GatewayDown,), max_retries=2, default_retry_delay=0)  # fmt: skip
def complete_order(self: Any, order_id: int, note: str = "") -> int:
    self.step("reserve", Effects.from_env().bump, f"reserve:{order_id}")
    charge(order_id)
    Effects.from_env().bump(f"charge:{order_id}")
    return order_id


def charge(order_id: int) -> None:
    if not os.path.exists(os.environ["TEST_MENDED"]):
        raise GatewayDown(f"pay.example answered 503 for order {order_id}")


@app.task(base=IdempotentTask, name="shop.send_receipt", bind=True, idem_key="receipt:{order_id}")
def send_receipt(self: Any, order_id: int) -> None:
    address(order_id)


def address(order_id: int) -> None:
    raise NoSuchCustomer(f"order {order_id} has no customer any more")


@app.task(base=IdempotentTask, name="shop.monthly_report", bind=True, idem_key="report:{month}")
def monthly_report(self: Any, month: str) -> None:
    raise ZeroDivisionError("no orders in the north")
