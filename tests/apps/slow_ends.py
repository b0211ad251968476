"""Tasks whose handlers take longer than a lease: Celery runs them between body and ack."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from celery_idem import IdempotentTask, signals
from tests.support.effects import Effects

broker = os.environ["TEST_BROKER"]
app = Celery("slow_ends", broker=broker, backend=broker)
app.conf.update(
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    idem={"lease_s": 0.6},
)
HANDLER_S = 1.5


@signals.lease_lost.connect(weak=False)
def _lost(key: str, **_: Any) -> None:
    Effects.from_env().bump("lease_lost", lost=key)


class SlowEnd(IdempotentTask):
    abstract = True

    def on_success(self, *_: Any) -> None:
        time.sleep(HANDLER_S)

    def on_failure(self, *_: Any) -> None:
        time.sleep(HANDLER_S)

    def on_retry(self, *_: Any) -> None:
        time.sleep(HANDLER_S)


@app.task(base=SlowEnd, name="slow.ends", bind=True, idem_key="{name}", max_retries=1)
def ends(self: Any, name: str, how: str) -> str:
    """Takes a lease and ends by ``how``: success, retry (then success), failure."""
    Effects.from_env().bump(f"start:{name}")
    time.sleep(1)
    if how == "failure":
        raise RuntimeError("as asked")
    if how == "retry" and not self.request.retries:
        raise self.retry(countdown=0)
    return name
