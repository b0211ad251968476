# ruff: noqa
"""A shop on RabbitMQ, for what Redis can't do wrong."""

import os

from celery import Celery

from celery_idem import IdempotentTask

app = Celery("shop", broker=os.environ["TEST_BROKER"])
app.conf.update(
    worker_deduplicate_successful_tasks=os.environ.get("TEST_OLD_CELERY") == "1",
    idem={"store": "memory"},
)
NO_LINE = {"IDEM044": 'broker_transport_options["confirm_publish"]'}


@app.task(base=IdempotentTask, time_limit=3600)  # expect: IDEM012
def longer_than_rabbitmq_allows(order): ...


@app.task(base=IdempotentTask, bind=True, time_limit=60)
def comes_back_too_late(self, order):
    raise self.retry(countdown=7200)  # expect: IDEM012


@app.task(base=IdempotentTask, time_limit=60)
def right(order): ...
