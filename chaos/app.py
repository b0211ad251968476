"""The shop's jobs, as workers load them. Each notes in the ledger what it does to the world.

Read from the environment: ``CHAOS_BROKER``, ``CHAOS_STORE``, ``CHAOS_OPTIONS`` (transport options,
JSON), ``CHAOS_DATABASE``, ``CHAOS_RELEASE`` (a number; tasks of later releases are not known),
``CHAOS_WORKER`` (its name), ``TEST_EFFECTS`` (the ledger).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import django
from celery import Celery
from django.db import connection

from celery_idem import IdempotentTask, signals
from tests.support.effects import Effects

#: Seconds: short, so that ten minutes see many leases end.
LEASE_S = 4.0
LANES = {"critical": 10, "normal": 5, "low": 1}
#: For how long a worker that does not know a task of the next release puts it off, in seconds.
GRACE_S = 120.0

broker = os.environ["CHAOS_BROKER"]
store = os.environ["CHAOS_STORE"]
options = json.loads(os.environ.get("CHAOS_OPTIONS", "{}"))
release = int(os.environ.get("CHAOS_RELEASE", "0"))
worker = os.environ.get("CHAOS_WORKER", "")

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chaos.database")
django.setup()

app = Celery("chaos", broker=broker, backend=store)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options=options,
    result_backend_transport_options={k: v for k, v in options.items() if k == "master_name"},
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_prefetch_multiplier=2,
    idem={
        "store": store,
        "lease_s": LEASE_S,
        "lanes": LANES,
        "dead_letters": {"unknown_task_grace_s": GRACE_S},
    },
)


class GatewayDown(Exception):
    """The carrier's service does not answer; comes again."""


def note(key: str, what: str, fence: int = 0, **fields: Any) -> None:
    """One line in the ledger."""
    Effects.from_env().bump(key, what=what, fence=fence, worker=worker, **fields)


@contextmanager
def run(task: Any, key: str) -> Iterator[None]:
    """Note the start and the end of a body; what is killed in between has neither end."""
    note(key, "start", task.fence, task_id=task.request.id, release=release)
    try:
        yield
    except BaseException:
        note(key, "raised", task.fence, task_id=task.request.id)
        raise
    note(key, "end", task.fence, task_id=task.request.id)


def _listen(signal: Any, what: str) -> None:
    def heard(key: str, fence: int = 0, **_: Any) -> None:
        note(key.partition(":")[2], what, fence)

    signal.connect(heard, weak=False)


_listen(signals.completed, "completed")
_listen(signals.lease_lost, "lease lost")
_listen(signals.crashed, "crashed")
_listen(signals.duplicate, "duplicate")


def job(**task_options: Any) -> Callable[[Callable[..., Any]], Any]:
    """An idempotent task of this app."""
    decorated: Callable[[Callable[..., Any]], Any] = app.task(
        base=IdempotentTask, bind=True, shared=False, **task_options
    )
    return decorated


@job(name="chaos.pay", idem_key="pay:{order}", lane="critical")
def pay(self: Any, order: int, busy_s: float = 0.02) -> str:
    """Charge a card: one effect, somewhere in the body."""
    with run(self, f"pay:{order}"):
        time.sleep(busy_s / 2)
        note(f"pay:{order}", "effect", self.fence, name="charge")
        time.sleep(busy_s / 2)
    return f"receipt {order}"


@job(name="chaos.receipt", idem_key="receipt:{order}", lane="normal", ignore_result=True)
def receipt(self: Any, paid: str, order: int) -> None:
    """What follows a payment, as a link of it."""
    with run(self, f"receipt:{order}"):
        note(f"receipt:{order}", "effect", self.fence, name="receipt", paid=paid)


def _step(key: str, fence: int, name: str) -> str:
    note(key, "effect", fence, name=name)
    return name


def _pack(key: str, fence: int) -> None:
    """An effect in the database, in the transaction of its step."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO packed (key, fence) VALUES (%s, %s)", [key, fence])


def _call_carrier(key: str, fence: int, fails: bool) -> str:
    if fails:
        raise GatewayDown(key)
    return _step(key, fence, "carrier")


@job(name="chaos.ship", idem_key="ship:{order}", lane="normal", ignore_result=True,
     autoretry_for=(GatewayDown,), retry_backoff=1, retry_backoff_max=4, max_retries=8)  # fmt: skip
def ship(self: Any, order: int, fails: bool = False) -> None:
    """Three steps: exactly once in the database, at most once, and one whose first attempt may
    fail."""
    key = f"ship:{order}"
    with run(self, key):
        self.step.transaction("pack", _pack, key, self.fence)
        self.step("label", _step, key, self.fence, "label", at_most_once=True)
        first = self.request.retries == 0
        self.step("carrier", _call_carrier, key, self.fence, fails and first)


@job(name="chaos.report", idem_key="report:{order}", lane="low", ignore_result=True)
def report(self: Any, order: int, busy_s: float = 3.0) -> None:
    """A job that may outlast its lease many times."""
    with run(self, f"report:{order}"):
        time.sleep(busy_s)
        note(f"report:{order}", "effect", self.fence, name="report")


if release >= 1:

    @job(name="chaos.promo", idem_key="promo:{order}", lane="low", ignore_result=True)
    def promo(self: Any, order: int) -> None:
        """A task that workers of the first release do not know."""
        with run(self, f"promo:{order}"):
            note(f"promo:{order}", "effect", self.fence, name="promo")
