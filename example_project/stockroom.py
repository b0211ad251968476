"""The shop's own database, filled before a day in the shop and counted after it."""

from __future__ import annotations

from dataclasses import dataclass

#: product → price in cents
PRODUCTS = {"Kettle": 2490, "Lamp": 3900, "Teapot": 1850, "Tray": 1275, "Cup": 690}
#: Pieces of each product before the first order.
PIECES = 100_000


@dataclass(frozen=True, slots=True)
class Stock:
    """What the database says."""

    receipts: dict[int, str]  #: order → receipt; empty while it is not paid
    taken: int  #: pieces that are no longer in stock


def prepare(fresh: bool = True) -> None:
    """Make the tables and put the products in, unless they are there. The environment says which
    database, see the shop's settings.

    Raises ``RuntimeError`` when the database can't be used; and when it has seen orders already,
    where it is to be ``fresh``.
    """
    import django
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import call_command
    from django.db import DatabaseError

    import example_project.shop  # noqa: F401 - names the settings

    try:
        django.setup()
        call_command("migrate", verbosity=0)
    except (ImproperlyConfigured, DatabaseError) as error:
        raise RuntimeError(f"this database can't be used: {error}") from error
    from example_project.shop.models import Order, Product

    if fresh and (orders := Order.objects.count()):
        raise RuntimeError(
            f"this database holds {orders} orders, which would be counted, too: give an empty one"
        )
    for name, cents in PRODUCTS.items():
        Product.objects.get_or_create(name=name, defaults={"cents": cents, "left": PIECES})


def count() -> Stock:
    """Count what is there now."""
    from example_project.shop.models import Order, Product

    return Stock(
        receipts=dict(Order.objects.values_list("number", "receipt")),
        taken=sum(PIECES - left for left in Product.objects.values_list("left", flat=True)),
    )
