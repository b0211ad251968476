"""The shop's jobs."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from django.db import OperationalError
from django.db.models import Count, F, Sum

from celery_idem import IdempotentTask
from example_project.shop import mails, payments
from example_project.shop.models import Order, Product


@shared_task(
    base=IdempotentTask, bind=True, name="shop.complete_order", idem_key="order:{number}",
    lane="critical", autoretry_for=(payments.Unreachable, OperationalError), retry_backoff=True,
    max_retries=8,
)  # fmt: skip
def complete_order(self: Any, number: int, product: str, cents: int) -> str:
    """Enter the order, charge the card, mail the receipt; returns the receipt.

    The database comes first, then what leaves the house, each with a name of its own. However
    often the job is sent, fails or dies, it goes on behind the last step that is done.
    """
    # in one transaction with its record: exactly once
    self.step.transaction("order", enter, number, product, cents)

    # recorded after it was done: a kill in between asks again, with the same key
    receipt: str = self.step(
        "charge", payments.charge, number, cents,
        idempotency_key=self.step.key("charge"), fence=self.fence,
    )  # fmt: skip

    # sets a value, so it needs no step; an older holder's fence changes nothing
    order = Order.objects.filter(number=number)
    order.fenced(self.fence).update(status=Order.Status.PAID, receipt=receipt)

    # recorded after it was done, and nobody takes a key: a kill in between mails once more
    self.step("mail", mails.send_receipt, number, receipt, message_id=self.step.key("mail"))
    return receipt


def enter(number: int, product: str, cents: int) -> None:
    """The order's row, and one piece less in stock.

    The stock first: it locks the product's row, which the order's row refers to. The other way
    round, two orders of one product could each wait for the other (a deadlock on MariaDB).
    """
    wanted = Product.objects.get(name=product)
    Product.objects.filter(pk=wanted.pk).update(left=F("left") - 1)
    Order.objects.create(number=number, product=wanted, cents=cents)


@shared_task(
    base=IdempotentTask, name="shop.send_login_code", idem_key="login:{customer}",
    lane="normal", cooldown_s=60, autoretry_for=(payments.Unreachable,), retry_backoff=True,
)  # fmt: skip
def send_login_code(customer: str, code: str) -> str:
    """At most one code in a minute for each customer, however often they press the button."""
    mails.send_login_code(customer, code)
    return "sent"


@shared_task(base=IdempotentTask, name="shop.report", idem_key="report:{day}", lane="low")
def report(day: str) -> dict[str, int]:
    """What was sold on a day (``YYYY-MM-DD``)."""
    return Order.objects.filter(entered_at__date=day).aggregate(
        orders=Count("pk"), cents=Sum("cents", default=0)
    )
