"""Idempotent tasks that go to every worker, by a fanout exchange."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from kombu import Queue
from kombu.common import Broadcast

import celery_idem.transport  # noqa: F401 - makes redis-streams:// known
from celery_idem import IdempotentTask
from tests.support.effects import Effects

app = Celery("everywhere", broker=os.environ["TEST_BROKER"], set_as_current=False)
app.conf.update(
    task_queues=[Queue("celery"), Broadcast("everyone", routing_key="celery")],
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    idem={"lease_s": 1, "store": os.environ["TEST_STORE"]},
)


@app.task(base=IdempotentTask, name="everywhere.reload", bind=True)
def reload(self: Any, key: str) -> None:
    Effects.from_env().bump(key, worker=self.request.hostname)


@app.task(base=IdempotentTask, name="everywhere.once", idem_key="{key}")
def once(key: str, seconds: float) -> None:
    """Of all workers that are told, one does it."""
    effects = Effects.from_env()
    effects.bump(f"{key}:start")
    time.sleep(seconds)
    effects.bump(f"{key}:end")
