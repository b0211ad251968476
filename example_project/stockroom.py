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


def prepare() -> None:
    """Make the tables and put the products in. The environment says which database, see the
    shop's settings.

    Raises ``RuntimeError`` when the database can't be used, or has seen orders already.
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

    if orders := Order.objects.count():
        raise RuntimeError(
            f"this database holds {orders} orders, which would be counted, too: give an empty one"
        )
    Product.objects.all().delete()
    Product.objects.bulk_create(
        Product(name=name, cents=cents, left=PIECES) for name, cents in PRODUCTS.items()
    )


def count() -> Stock:
    """Count what is there now."""
    from example_project.shop.models import Order, Product

    return Stock(
        receipts=dict(Order.objects.values_list("number", "receipt")),
        taken=sum(PIECES - left for left in Product.objects.values_list("left", flat=True)),
    )
