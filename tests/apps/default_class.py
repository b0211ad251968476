"""IdempotentTask as the app's default class: every task is one, but Celery's own."""

from __future__ import annotations

import os

from celery import Celery

from tests.support.effects import Effects

broker = os.environ["TEST_BROKER"]
app = Celery("default_class", broker=broker, backend=broker, task_cls="celery_idem:IdempotentTask")
app.conf.update(broker_connection_retry_on_startup=True, idem={"lease_s": 2})


@app.task(name="default.pay", idem_key="order:{order}")
def pay(order: int) -> int:
    Effects.from_env().bump("pay")
    return order


@app.task(name="default.by_id")
def by_id(*parts: object) -> int:
    Effects.from_env().bump("by_id")
    return len(parts)
