"""Key functions that use a clock or chance, however they were imported."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import date, datetime
from os import getpid, urandom
from random import getrandbits, random
from random import random as chance
from time import time
from uuid import uuid4, uuid5

import pytest

from celery_idem.core.key import unstable_names


def by_now(order_id: int) -> str:
    return f"{order_id}:{datetime.now()}"


def by_today(order_id: int) -> str:
    return f"{order_id}:{date.today()}"


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (by_now, "datetime.now"),
        (by_today, "datetime.today"),
        (lambda it: str(time()), "time.time"),
        (lambda it: str(uuid4()), "uuid.uuid4"),
        (lambda it: str(random()), "random.random"),
        (lambda it: str(chance()), "random.random"),
        (lambda it: str(getrandbits(8)), "random.getrandbits"),
        (lambda it: urandom(8).hex(), "os.urandom"),
        (lambda it: f"{getpid()}", "os.getpid"),
        (lambda it: f"{os.getpid()}", "os.getpid"),
    ],
)
def test_what_was_imported_by_its_name_is_found(function: Callable[..., str], named: str):
    assert unstable_names(function) == [named]


def by_a_date(order_id: int) -> str:
    return f"{datetime.fromisoformat('2026-01-02')}:{date(2026, 1, order_id)}"


def by_sums(order_id: int) -> str:
    return f"{math.floor(order_id)}:{os.path.sep}:{uuid5}:{missing}"  # type: ignore  # noqa: F821


@pytest.mark.parametrize("function", [by_a_date, by_sums])
def test_what_is_the_same_at_every_call_is_not_blamed(function: Callable[..., str]):
    assert unstable_names(function) == []
