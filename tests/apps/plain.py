"""A Celery app without celery_idem, for tests of the support and as the yardstick.

Read from the environment: ``TEST_BROKER``, ``TEST_BACKEND`` (default: the broker),
``TEST_EFFECTS`` (the ledger's path).
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from tests.support.effects import Effects

broker = os.environ["TEST_BROKER"]
app = Celery("plain", broker=broker, backend=os.environ.get("TEST_BACKEND", broker))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    # kombu sweeps every interval × throttle seconds: 100 by default, here 1
    broker_transport_options={
        "visibility_timeout": 5,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    if broker.startswith("redis")
    else {},
)


@app.task(name="plain.add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="plain.effect")
def effect(key: str, **fields: Any) -> str:
    """Note one effect."""
    Effects.from_env().bump(key, **fields)
    return key


@app.task(name="plain.slow")
def slow(key: str, seconds: float) -> str:
    """Note ``key:start``, be busy for a while, note ``key:end``."""
    effects = Effects.from_env()
    effects.bump(f"{key}:start")
    time.sleep(seconds)
    effects.bump(f"{key}:end")
    return key
