"""An app with one task that can't keep the promise; ``TEST_BAD`` says which."""

from __future__ import annotations

import os
import uuid
from typing import Any

from celery import Celery

from celery_idem import IdempotentTask

broker = os.environ["TEST_BROKER"]
app = Celery("refused", broker=broker, backend=broker)
app.conf.update(broker_connection_retry_on_startup=True)

OPTIONS: dict[str, dict[str, Any]] = {
    "retention": {"retention_s": 3600, "max_retries": 8, "default_retry_delay": 600},
    "template": {"idem_key": "order:{oder_id}"},
    "unstable": {"idem_key": lambda order_id: f"{order_id}-{uuid.uuid4()}"},
    "early": {"acks_late": False},
    "conflict": {"on_conflict": "queue"},
    "none": {},
}
if os.environ["TEST_BAD"] == "setting":
    app.conf.idem = {"lease": 10}


@app.task(base=IdempotentTask, name="refused.pay", **OPTIONS.get(os.environ["TEST_BAD"], {}))
def pay(order_id: int) -> None:
    raise AssertionError("this worker must not have started")
