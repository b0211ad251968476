"""Fenced rows: a holder that was overtaken changes nothing, and is told (S-V6)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections, transaction

from celery_idem import LeaseLost
from tests.django import databases
from tests.django.databases import ALL
from tests.django.shop.models import Order

pytestmark = pytest.mark.parametrize("database", ALL, indirect=True)


@pytest.fixture
def orders(database: str) -> Any:
    """The orders of this database: ``1`` was written under fence 7, ``2`` under none."""
    orders = Order.objects.using(database)
    orders.create(number="1", fence=7)
    orders.create(number="2")
    return orders


def seen(orders: Any) -> dict[str, tuple[str, int]]:
    return {o.number: (o.status, o.fence) for o in orders.all()}


@pytest.mark.parametrize("fence", [7, 8])
def test_the_holder_and_who_came_after_it_write(orders: Any, fence: int) -> None:
    assert orders.filter(number="1").fenced(fence).update(status="paid") == 1

    assert seen(orders)["1"] == ("paid", fence)


def test_who_was_overtaken_writes_nothing_and_is_told(orders: Any) -> None:
    with pytest.raises(LeaseLost, match="under a fence above 6"):
        orders.filter(number="1").fenced(6).update(status="paid")

    assert seen(orders)["1"] == ("new", 7)


def test_one_newer_row_undoes_the_write_of_all(orders: Any) -> None:
    with pytest.raises(LeaseLost):
        orders.all().fenced(6).update(status="paid")

    assert seen(orders) == {"1": ("new", 7), "2": ("new", 0)}


def test_a_filter_that_no_longer_matches_changes_nothing_and_is_no_loss(orders: Any) -> None:
    assert orders.filter(number="3").fenced(6).update(status="paid") == 0


def test_deleting_is_fenced_too(orders: Any) -> None:
    with pytest.raises(LeaseLost):
        orders.filter(number="1").fenced(6).delete()
    assert set(seen(orders)) == {"1", "2"}

    assert orders.filter(number="1").fenced(8).delete()[0] == 1
    assert set(seen(orders)) == {"2"}


def test_bulk_update_is_fenced_too(orders: Any) -> None:
    rows = list(orders.all())
    for row in rows:
        row.status = "paid"

    with pytest.raises(LeaseLost):
        orders.fenced(6).bulk_update(rows, ["status"])
    assert seen(orders) == {"1": ("new", 7), "2": ("new", 0)}

    assert orders.fenced(8).bulk_update(rows, ["status"]) == 2
    assert seen(orders) == {"1": ("paid", 8), "2": ("paid", 8)}


def test_a_new_row_begins_with_its_creators_fence(orders: Any) -> None:
    orders.fenced(9).create(number="3")

    assert seen(orders)["3"] == ("new", 9)


def test_what_cannot_be_fenced_is_refused(orders: Any) -> None:
    with pytest.raises(TypeError, match="can't guard update_or_create"):
        orders.fenced(9).update_or_create(number="1", defaults={"status": "paid"})
    assert seen(orders)["1"] == ("new", 7)


@pytest.mark.parametrize("fence", [None, "7", -1, True, 7.0])
def test_what_is_no_fence_is_refused_and_guards_nothing_in_silence(orders: Any, fence: Any) -> None:
    with pytest.raises(TypeError, match=r"takes a task's self\.fence"):
        orders.fenced(fence)


def test_a_direct_call_has_no_fence(orders: Any) -> None:
    assert orders.filter(number="1").fenced(0).update(status="paid") == 1
    assert orders.update_or_create(number="1", defaults={"total": 3})[0].total == 3

    assert seen(orders)["1"] == ("paid", 7)


def test_of_two_writers_at_once_the_newer_is_the_last(orders: Any, database: str) -> None:
    """The older waits for the newer's open transaction, and is refused when that has committed."""
    if database == "sqlite":
        return  # one writer: nobody is ever inside beside another
    inside, go_on = threading.Event(), threading.Event()
    ended: dict[int, Any] = {}

    def write(fence: int) -> None:
        try:
            with transaction.atomic(using=database):
                done = orders.filter(number="1").fenced(fence).update(status=f"by {fence}")
                if fence == 9:
                    inside.set()
                    assert go_on.wait(60)
            ended[fence] = done
        except LeaseLost as lost:
            ended[fence] = lost
        finally:
            connections.close_all()

    newer = threading.Thread(target=write, args=(9,))
    newer.start()
    assert inside.wait(60)
    older = threading.Thread(target=write, args=(8,))
    older.start()
    databases.wait_until_blocked(database, "UPDATE%shop_order%")
    go_on.set()
    newer.join(60)
    older.join(60)

    assert ended[9] == 1
    assert isinstance(ended[8], LeaseLost)
    assert seen(orders)["1"] == ("by 9", 9)
