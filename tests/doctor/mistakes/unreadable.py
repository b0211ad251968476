# ruff: noqa
"""A shop whose settings can't be read."""

import os

from celery import Celery

from celery_idem import IdempotentTask

app = Celery("shop", broker=os.environ["TEST_BROKER"])
app.conf.idem = {"leese_s": 10}
NO_LINE = {"IDEM001": "idem"}


@app.task(base=IdempotentTask, time_limit=60)
def right(order): ...
