"""A night in which three things go wrong, for ``docs/a-morning-with-the-dlq.md``.

In the shop's environment (``make shop`` names the file)::

    python -m example_project.night           # the night: 240 orders die of three faults
    python -m example_project.night --over    # the gateway is back, some customers order again
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

#: Orders that the gateway is closed for, that name a product which there is not, that no bank pays.
CLOSED, MISSPELT, TOO_MUCH = 180, 36, 24
#: Customers who order again in the morning, before anybody has replayed a letter.
AGAIN = 12
#: Numbers of the orders begin here.
FIRST = 7_000_001
DEADLINE_S = 300.0

#: product and price of an order by its number
PRODUCTS = (("Kettle", 2490), ("Lamp", 3900), ("Teapot", 1850))


def main(argv: Sequence[str] | None = None) -> None:
    """One half of the night or the other."""
    parser = argparse.ArgumentParser(prog="python -m example_project.night", description=__doc__)
    parser.add_argument("--over", action="store_true", help="the gateway opens again")
    if parser.parse_args(argv).over:
        morning()
    else:
        night()


def night() -> None:
    """Send the orders and wait until all of them are dead letters."""
    _set_up()
    from celery import current_app

    from celery_idem.deadletters.base import Filter
    from celery_idem.deadletters.choose import letters_of

    store, sent = letters_of(current_app), set()

    def dead() -> int:
        return len(sent & {letter.task_id for letter in store.walk(Filter())})

    too_much = range(FIRST + CLOSED + MISSPELT, FIRST + CLOSED + MISSPELT + TOO_MUCH)
    for number in too_much:
        sent.add(_send(number, "Lamp", 1_200_000))
    _wait(dead, TOO_MUCH)
    _gateway(down=True)
    for number in range(FIRST, FIRST + CLOSED):
        product, cents = PRODUCTS[number % len(PRODUCTS)]
        sent.add(_send(number, product, cents))
    for number in range(FIRST + CLOSED, FIRST + CLOSED + MISSPELT):
        sent.add(_send(number, "Kettel", 2490))
    _wait(dead, CLOSED + MISSPELT + TOO_MUCH)
    print(f"{len(sent)} orders have died")


def morning() -> None:
    """The gateway opens, and some customers press the button again; their orders are paid."""
    _set_up()
    from example_project.shop.models import Order
    from example_project.shop.tasks import complete_order

    _gateway(down=False)
    numbers = range(FIRST, FIRST + AGAIN)
    for number in numbers:
        complete_order.delay(number, *PRODUCTS[number % len(PRODUCTS)])
    _wait(lambda: Order.objects.filter(number__in=numbers, status="paid").count(), AGAIN)
    print(f"the gateway is open; {AGAIN} customers have ordered again")


def _send(number: int, product: str, cents: int) -> str:
    """An order whose earlier attempts are over: this one is its last. Returns the task's id."""
    from example_project.shop.tasks import complete_order

    order = (number, product, cents)
    return str(complete_order.apply_async(order, retries=complete_order.max_retries).id)


def _gateway(*, down: bool) -> None:
    from django.conf import settings

    from example_project.shop.payments import Unreachable, post

    try:
        post(settings.PAYMENT_GATEWAY, "/mood", {"down": down})
    except Unreachable as error:
        raise SystemExit(f"no gateway ({error}); run this in the shop's environment") from error


def _wait(count: Any, wanted: int) -> None:
    gives_up = time.monotonic() + DEADLINE_S
    while (seen := count()) < wanted:
        if time.monotonic() > gives_up:
            raise SystemExit(f"{seen} of {wanted} after {DEADLINE_S:.0f} s: does a worker run?")
        time.sleep(0.1)


def _set_up() -> None:
    import django

    import example_project.shop  # noqa: F401 - names the settings

    django.setup()


if __name__ == "__main__":
    main()
