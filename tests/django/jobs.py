"""The shop's Celery app, for real workers and for the test's own process.

Read from the environment: ``TEST_BROKER``, ``TEST_BACKEND`` (default: the broker),
``TEST_EFFECTS``, ``TEST_PLAN`` (see ``tests/apps/stepped.py``), and what
``tests/django/settings.py`` reads.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

from celery import Celery
from django.db import transaction

from celery_idem import IdempotentTask, LeaseLost
from tests.apps.stepped import GatewayDown, point
from tests.django import ready  # noqa: F401 - before the models
from tests.django.shop.models import Effect, Order
from tests.support.effects import Effects

broker = os.environ.get("TEST_BROKER", "memory://")
app = Celery("shop", broker=broker, backend=os.environ.get("TEST_BACKEND", broker))
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)


def in_database(name: str, using: str = "default") -> str:
    """An effect in the database, in two rows, with a place to fail before, between and after."""
    point(f"before:{name}")
    Effect.objects.using(using).create(name=name, note="first half")
    point(f"inside:{name}")
    Effect.objects.using(using).create(name=name, note="second half")
    point(f"end:{name}")
    return f"{name} done"


def outside(name: str, sent_key: str = "") -> str:
    """An effect that no database takes back."""
    point(f"before:{name}")
    Effects.from_env().bump(name, sent=sent_key)
    point(f"inside:{name}")
    return f"{name} done"


@app.task(base=IdempotentTask, name="shop.order", bind=True, idem_key="order:{number}",
          autoretry_for=(GatewayDown,), max_retries=8, default_retry_delay=0)  # fmt: skip
def order(self: Any, number: str) -> list[str]:
    """The article's job (S-S2): the order in the database, the mail, the partner's stock."""
    out = [self.step.transaction("order", in_database, f"order:{number}")]
    point(f"after:order:{number}")
    out.append(self.step("email", outside, f"email:{number}", self.step.key("email")))
    point(f"after:email:{number}")
    out.append(self.step("stock", outside, f"stock:{number}"))
    point(f"after:stock:{number}")
    return out


@app.task(base=IdempotentTask, name="shop.charges", bind=True, idem_key="charges:{number}",
          autoretry_for=(GatewayDown,), max_retries=8, default_retry_delay=0)  # fmt: skip
def charges(self: Any, number: str) -> str:
    """A step that must not happen twice."""
    done = str(self.step("card", outside, f"card:{number}", at_most_once=True))
    point(f"after:card:{number}")
    return done


@app.task(base=IdempotentTask, name="shop.dies", bind=True, idem_key="dies:{number}",
          max_crashes=1000)  # fmt: skip
def dies(self: Any, number: str, kills: int, within_s: float) -> str:
    """Killed at a random instant of a transactional step, until it was killed often enough."""
    effects = Effects.from_env()
    if effects.count(f"start:{number}") < kills:
        effects.bump(f"start:{number}")
        timer = threading.Timer(random.uniform(0, within_s), os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    return str(self.step.transaction("effect", in_database, f"dies:{number}"))


@app.task(base=IdempotentTask, name="shop.pays", bind=True, idem_key="pays:{number}")
def pays(self: Any, number: str, gate: str) -> str:
    """C60: waits for a gate in its middle, then writes its row as the holder of its fence."""
    Effects.from_env().bump(f"start:{number}", fence=self.fence)
    gives_up = time.monotonic() + 120
    while not os.path.exists(gate) and time.monotonic() < gives_up:
        time.sleep(0.02)
    status = f"paid by {self.fence}"
    try:
        Order.objects.filter(number=number).fenced(self.fence).update(status=status)
    except LeaseLost as refused:
        Effects.from_env().bump(f"refused:{number}", fence=self.fence, why=str(refused))
        raise
    return status


@app.task(base=IdempotentTask, name="shop.reads", bind=True, idem_key="reads:{number}")
def reads(self: Any, number: str) -> str:
    """C66: needs the row that the caller's transaction creates."""
    found = Order.objects.get(number=number)
    Effects.from_env().bump(f"reads:{number}")
    return str(found.number)


@app.task(base=IdempotentTask, name="shop.hooked", bind=True, idem_key="hooked:{number}")
def hooked(self: Any, number: str) -> str:
    """A transactional step that registers a hook."""

    def effect() -> None:
        Effect.objects.create(name=f"hooked:{number}")
        transaction.on_commit(lambda: Effects.from_env().bump(f"hook:{number}"))

    self.step.transaction("effect", effect)
    point("after:effect")
    return number
