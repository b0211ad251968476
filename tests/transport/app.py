"""A plain Celery app (no ``IdempotentTask``) for tests of the transport; as tests/apps/plain.py.

Also read: ``TEST_OPTIONS``, JSON of ``broker_transport_options``; ``TEST_CONF``, JSON of settings.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery
from celery.exceptions import Reject

import celery_idem.transport  # noqa: F401 - makes redis-streams:// known
from tests.support.effects import Effects

broker = os.environ["TEST_BROKER"]
app = Celery("streams", broker=broker, backend=os.environ.get("TEST_BACKEND"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_transport_options=json.loads(os.environ.get("TEST_OPTIONS", "{}")),
)
app.conf.update(json.loads(os.environ.get("TEST_CONF", "{}")))


@app.task(name="streams.effect")
def effect(key: str, **fields: Any) -> str:
    """Note one effect."""
    Effects.from_env().bump(key, **fields)
    return key


@app.task(name="streams.slow")
def slow(key: str, seconds: float) -> str:
    """Note ``key:start``, be busy for a while, note ``key:end``."""
    effects = Effects.from_env()
    effects.bump(f"{key}:start")
    time.sleep(seconds)
    effects.bump(f"{key}:end")
    return key


@app.task(name="streams.gated")
def gated(key: str, gate: str) -> str:
    """Note ``key:start``, wait for a file that the test makes, note ``key:end``."""
    effects = Effects.from_env()
    effects.bump(f"{key}:start")
    gives_up = time.monotonic() + 120
    while not os.path.exists(gate) and time.monotonic() < gives_up:
        time.sleep(0.02)
    effects.bump(f"{key}:end")
    return key


@app.task(name="streams.work", ignore_result=True)
def work(key: str, seconds: float) -> None:
    """Be busy for a while, then note one effect."""
    time.sleep(seconds)
    Effects.from_env().bump(key)


@app.task(name="streams.noop", ignore_result=True)
def noop() -> None:
    """Nothing."""


@app.task(name="streams.nap", ignore_result=True)
def nap(seconds: float) -> None:
    """Be busy for a while."""
    time.sleep(seconds)


@app.task(name="streams.rejecting", bind=True)
def rejecting(self: Any, key: str, times: int) -> str:
    """Go back to the queue so many times, then note the effect."""
    effects = Effects.from_env()
    effects.bump(f"{key}:try", count=(self.request.headers or {}).get("x-delivery-count"))
    if effects.count(f"{key}:try") <= times:
        raise Reject("not now", requeue=True)
    effects.bump(key)
    return key


@app.task(name="streams.retrying", bind=True, max_retries=5)
def retrying(self: Any, key: str, times: int, countdown: float) -> str:
    """Fail with a retry so many times, then note the effect."""
    effects = Effects.from_env()
    effects.bump(f"{key}:try", retries=self.request.retries)
    if self.request.retries < times:
        raise self.retry(countdown=countdown)
    effects.bump(key)
    return key


@app.task(name="streams.add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="streams.total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


if "TEST_STORE" in os.environ:  # the same no-op, idempotent: only where its cost is measured
    from celery_idem import IdempotentTask

    app.conf.idem = {"store": os.environ["TEST_STORE"]}

    @app.task(base=IdempotentTask, name="streams.idempotent", ignore_result=True)
    def idempotent(number: int) -> None:
        """Nothing, once."""
