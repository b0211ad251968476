"""Idempotent tasks on lanes, with no set-up but the setting.

Read from the environment: ``TEST_BROKER``, ``TEST_EFFECTS``, ``TEST_STORE`` (a Redis, where the
broker is none).
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from celery_idem import IdempotentTask
from tests.support.effects import Effects

app = Celery("lanes_idem", broker=os.environ["TEST_BROKER"])
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    idem={
        "lanes": {"critical": 10, "normal": 5, "low": 1},
        **({"store": os.environ["TEST_STORE"]} if "TEST_STORE" in os.environ else {}),
    },
)


@app.task(
    base=IdempotentTask, name="lanes_idem.pay", bind=True, lane="critical", idem_key="pay:{order}",
    max_retries=3,
)  # fmt: skip
def pay(self: Any, order: str, fail: bool = False, busy_s: float = 0.0) -> None:
    """Note the queue that it came from; fail at the first attempt when asked to."""
    queue = self.request.delivery_info["routing_key"]
    Effects.from_env().bump(order, queue=queue, retries=self.request.retries)
    Effects.from_env().bump(f"queue:{queue}")
    time.sleep(busy_s)
    if fail and self.request.retries == 0:
        raise self.retry(countdown=0)


@app.task(
    base=IdempotentTask, name="lanes_idem.refund", bind=True, lane="low", idem_key="refund:{order}",
    max_retries=3,
)  # fmt: skip
def refund(self: Any, order: str) -> None:
    """Never works in lane low; elsewhere at its second attempt."""
    queue = self.request.delivery_info["routing_key"]
    Effects.from_env().bump(order, queue=queue, retries=self.request.retries)
    if queue == "low":
        raise RuntimeError("not from here")
    if self.request.retries == 0:
        raise self.retry(countdown=0)


@app.task(
    base=IdempotentTask, name="lanes_idem.degraded", bind=True, lane="critical", idem_key="{order}",
    max_retries=3,
)  # fmt: skip
def degraded(self: Any, order: str, lane: str = "low") -> None:
    """Goes on in another lane after its first attempt, and stays there."""
    queue, headers = self.request.delivery_info["routing_key"], self.request.headers
    Effects.from_env().bump(order, queue=queue, headers=headers)
    if self.request.retries == 0:
        raise self.retry(countdown=0, lane=lane)
    if self.request.retries == 1:
        raise self.retry(countdown=0)
