"""Tasks for workers that are killed, frozen, cut off: bodies that wait for files, or hold the GIL.

Read from the environment: ``TEST_BROKER``, ``TEST_BACKEND``, ``TEST_EFFECTS``, ``TEST_IDEM``,
``TEST_CONF`` (both JSON), ``TEST_TRANSPORT`` (JSON, transport options), ``TEST_BOOKS`` (an SQLite
file with a table ``book(name PRIMARY KEY, fence, writer)``), ``TEST_CONFLICT`` and
``TEST_CLAIMED`` (files).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from typing import Any

from celery import Celery
from celery.exceptions import Reject

from celery_idem import AlreadyProcessed, IdempotentTask, InProgress, idempotent, signals
from tests.support.effects import Effects

broker = os.environ["TEST_BROKER"]
app = Celery("faulty", broker=broker, backend=os.environ.get("TEST_BACKEND", broker))
app.conf.update(
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("TEST_TRANSPORT", "{}")),
    idem=json.loads(os.environ.get("TEST_IDEM", '{"lease_s": 2}')),
    **json.loads(os.environ.get("TEST_CONF", "{}")),
)


def _until(path: str) -> None:
    """Wait for a file that the test makes: the body goes on when the test says so."""
    gives_up = time.monotonic() + 120
    while not os.path.exists(path) and time.monotonic() < gives_up:
        time.sleep(0.02)


@signals.conflict.connect(weak=False)
def _conflict(key: str, **_: Any) -> None:
    """``TEST_CONFLICT``: a delivery that met a holder waits for this file, then steps aside."""
    if gate := os.environ.get("TEST_CONFLICT"):
        Effects.from_env().bump("conflict", met=key)
        _until(gate)


@signals.claimed.connect(weak=False)
def _claimed(key: str, **_: Any) -> None:
    """``TEST_CLAIMED``: the first claim waits for this file before its body begins."""
    if gate := os.environ.get("TEST_CLAIMED"):
        Effects.from_env().bump("claimed", by=key)
        if Effects.from_env().count("claimed") == 1:
            _until(gate)


@app.task(base=IdempotentTask, name="faulty.work", bind=True, idem_key="work:{name}")
def work(self: Any, name: str, gate: str = "") -> str:
    """Its n-th start waits for the file ``{gate}-{n}``; its result says who made it."""
    effects = Effects.from_env()
    effects.bump(f"start:{name}", task_id=self.request.id, fence=self.fence)
    if gate:
        _until(f"{gate}-{effects.count(f'start:{name}')}")
    effects.bump(name, task_id=self.request.id, fence=self.fence)
    return f"{name} by {os.getpid()}"


@app.task(name="faulty.plain", acks_late=True)
def plain(name: str, gate: str = "") -> str:
    """As ``work``, without a key."""
    effects = Effects.from_env()
    effects.bump(f"start:{name}")
    if gate:
        _until(f"{gate}-{effects.count(f'start:{name}')}")
    effects.bump(name)
    return f"{name} by {os.getpid()}"


@app.task(name="faulty.plainly_aborted", acks_late=True)
def plainly_aborted(name: str, how: str) -> None:
    """A body without a key that ends in what Celery's pools are not made for."""
    Effects.from_env().bump(f"start:{name}")
    kinds = {"exit": SystemExit, "cancelled": asyncio.CancelledError, "memory": MemoryError}
    raise kinds[how]("enough")


@app.task(base=IdempotentTask, name="faulty.book", bind=True, idem_key="book:{name}")
def book(self: Any, name: str, gate: str) -> str:
    """As ``work``, and its effect is a row that is guarded by the fence."""
    effects = Effects.from_env()
    effects.bump(f"start:{name}", fence=self.fence)
    _until(f"{gate}-{effects.count(f'start:{name}')}")
    with sqlite3.connect(os.environ["TEST_BOOKS"], timeout=30) as books:
        accepted = books.execute(
            "UPDATE book SET fence = :fence, writer = :writer "
            "WHERE name = :name AND fence < :fence",
            {"fence": self.fence, "writer": os.getpid(), "name": name},
        ).rowcount
    effects.bump(f"write:{name}", accepted=accepted, fence=self.fence, lost=self.lease_lost)
    return f"{name} by {os.getpid()}"


@app.task(base=IdempotentTask, name="faulty.leaves", bind=True, idem_key="leaves:{name}")
def leaves(self: Any, name: str, gate: str, how: str) -> Any:
    """As ``work``, and its first start ends in another way than with a result."""
    effects = Effects.from_env()
    effects.bump(f"start:{name}")
    number = effects.count(f"start:{name}")
    _until(f"{gate}-{number}")
    if number > 1:
        return f"{name} by {os.getpid()}"
    if how == "fails":
        raise ValueError("too late")
    if how == "rejects":
        raise Reject("too late", requeue=False)
    return self.replace(app.signature("faulty.work", args=("replacement",)))


@app.task(base=IdempotentTask, name="faulty.holds_gil", bind=True, idem_key="gil:{name}")
def holds_gil(self: Any, name: str, power: int) -> str:
    """The first start is one C call that holds the GIL."""
    effects = Effects.from_env()
    effects.bump(f"start:{name}", fence=self.fence)
    if effects.count(f"start:{name}") == 1:
        3**power  # the time that it takes is what it is for
    effects.bump(name, fence=self.fence)
    return f"{name} by {os.getpid()}"


@app.task(base=IdempotentTask, name="faulty.spins", bind=True, idem_key="spin:{name}")
def spins(self: Any, name: str, seconds: float) -> str:
    """Pure Python that never waits."""
    Effects.from_env().bump(f"start:{name}", fence=self.fence)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    Effects.from_env().bump(name, fence=self.fence)
    return name


@app.task(base=IdempotentTask, name="faulty.blocks", bind=True, idem_key="block:{name}")
def blocks(self: Any, name: str, seconds: float) -> str:
    """The first start blocks the whole event loop of a gevent worker."""
    from gevent.monkey import get_original

    effects = Effects.from_env()
    effects.bump(f"start:{name}", fence=self.fence)
    if effects.count(f"start:{name}") == 1:
        get_original("time", "sleep")(seconds)
    effects.bump(name, fence=self.fence)
    return f"{name} by {os.getpid()}"


@app.task(base=IdempotentTask, name="faulty.hangs", bind=True, idem_key="hangs:{name}",
          time_limit=2)  # fmt: skip
def hangs(self: Any, name: str, gate: str) -> str:
    """As ``work``, and killed at its hard time limit."""
    effects = Effects.from_env()
    effects.bump(f"start:{name}")
    _until(f"{gate}-{effects.count(f'start:{name}')}")
    effects.bump(name)
    return name


@app.task(base=IdempotentTask, name="faulty.soft", bind=True, idem_key="{name}",
          soft_time_limit=1)  # fmt: skip
def soft(self: Any, name: str, gate: str) -> str:
    """As ``work``, and interrupted at its soft time limit."""
    effects = Effects.from_env()
    effects.bump(f"start:{name}")
    _until(f"{gate}-{effects.count(f'start:{name}')}")
    effects.bump(name)
    return name


@app.task(base=IdempotentTask, name="faulty.mails", bind=True, idem_key="batch:{batch}",
          max_retries=None)  # fmt: skip
def mails(self: Any, batch: str, people: int, dies_at: int, inside: bool) -> int:
    """A batch whose every mail has a key of its own; the first start dies with its worker."""
    effects = Effects.from_env()
    effects.bump(f"start:{batch}")
    first = effects.count(f"start:{batch}") == 1
    for number in range(people):
        if first and number == dies_at and not inside:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        try:
            with idempotent(f"mail:{batch}:{number}", ttl=3600):
                if first and number == dies_at:
                    os.killpg(os.getpgrp(), signal.SIGKILL)
                effects.bump(f"mail:{batch}:{number}")
        except AlreadyProcessed:
            continue
        except InProgress as error:
            raise self.retry(countdown=error.retry_after_s) from None
    return people


@app.task(base=IdempotentTask, name="faulty.pill", bind=True, idem_key="pill:{name}")
def pill(self: Any, name: str, times: int) -> str:
    """SIGKILLs its own process the first ``times`` times."""
    effects = Effects.from_env()
    effects.bump(f"start:{name}")
    if effects.count(f"start:{name}") <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    effects.bump(name)
    return name


@app.task(base=IdempotentTask, name="faulty.tries", bind=True, idem_key="tries:{name}",
          max_retries=3)  # fmt: skip
def tries(self: Any, name: str, gate: str) -> int:
    """Its n-th start waits for ``{gate}-{n}``; the first ones ask for a retry."""
    effects = Effects.from_env()
    effects.bump(f"start:{name}", retries=self.request.retries)
    _until(f"{gate}-{effects.count(f'start:{name}')}")
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    effects.bump(name)
    return int(self.request.retries)


@app.task(base=IdempotentTask, name="faulty.greedy", bind=True, idem_key="greedy:{name}")
def greedy(self: Any, name: str) -> int:
    """Its first start asks for a retry while it has a connection of the broker's pool."""
    effects = Effects.from_env()
    effects.bump(f"start:{name}", retries=self.request.retries)
    if effects.count(f"start:{name}") == 1:
        with app.pool.acquire(block=True):
            raise self.retry(countdown=0)
    if self.request.retries == 0:
        raise self.retry(countdown=0, connection=app.connection_for_write())
    effects.bump(name)
    return int(self.request.retries)


def _long_lease(self: Any, name: str, gate: str) -> str:
    """As ``work``, under a lease that is longer than the app's: its message is back before it."""
    effects = Effects.from_env()
    effects.bump(f"start:{name}", task_id=self.request.id)
    _until(f"{gate}-{effects.count(f'start:{name}')}")
    effects.bump(name)
    return name


skips, raises = (
    app.task(base=IdempotentTask, name=f"faulty.{action}s", bind=True, lease_s=6,
             idem_key="{name}", on_conflict=action)(_long_lease)
    for action in ("skip", "raise")
)  # fmt: skip
