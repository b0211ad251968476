"""An app with one task that can't keep the promise; ``TEST_BAD`` says which. ``TEST_IDEM`` and
``TEST_OPTIONS`` are the settings of this package and of the broker's transport, as JSON."""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

from celery import Celery

import celery_idem.transport  # noqa: F401 - TEST_BROKER may be a redis-streams:// URL
from celery_idem import IdempotentTask

broker = os.environ["TEST_BROKER"]
app = Celery("refused", broker=broker, backend=broker.replace("-streams", ""))
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
if "TEST_IDEM" in os.environ:
    app.conf.idem = json.loads(os.environ["TEST_IDEM"])
app.conf.broker_transport_options = json.loads(os.environ.get("TEST_OPTIONS", "{}"))


@app.task(base=IdempotentTask, name="refused.pay", **OPTIONS.get(os.environ["TEST_BAD"], {}))
def pay(order_id: int) -> None:
    raise AssertionError("this worker must not have started")


class Refund(IdempotentTask):
    """Bound where it is registered, which is when the module is imported."""

    name = "refused.refund"
    acks_late = False

    def run(self, order_id: int) -> None: ...


if os.environ["TEST_BAD"] == "class":
    app.register_task(Refund())


if os.environ["TEST_BAD"] == "base":

    @app.task(name="refused.mail", idem_key="mail:{order_id}")
    def mail(order_id: int) -> None: ...
