"""Plain tasks on lanes, for tests and for the benchmark.

Read from the environment: ``TEST_BROKER``; ``TEST_IDEM``: the ``idem`` setting as JSON (absent: a
stock worker, whose order is ``TEST_STOCK_ORDER``); ``TEST_CONF``: more settings as JSON;
``TEST_EFFECTS``: the ledger; ``TEST_QUORUM``: lanes as quorum queues; ``TEST_PREFIX``: before the
names of the queues.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Exchange, Queue

from celery_idem.lanes.install import install_lanes
from tests.support.effects import Effects

LANES = ("critical", "normal", "low")

broker = os.environ["TEST_BROKER"]
prefix = os.environ.get("TEST_PREFIX", "")
idem = json.loads(os.environ.get("TEST_IDEM", "null"))
app = Celery("lanes", broker=broker)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=True,
    broker_connection_retry_on_startup=True,
)
if broker.startswith("redis"):
    app.conf.broker_transport_options = {
        "queue_order_strategy": os.environ.get("TEST_STOCK_ORDER", "round_robin"),
        "visibility_timeout": 600,
    }
    if idem is not None:
        app.conf.broker_transport_options.pop("queue_order_strategy")
if os.environ.get("TEST_QUORUM"):
    app.conf.task_queues = [
        Queue(
            prefix + name,
            Exchange(prefix + name, type="direct"),
            routing_key=prefix + name,
            queue_arguments={"x-queue-type": "quorum"},
        )
        for name in LANES
    ]
    app.conf.broker_transport_options = {"confirm_publish": True}
app.conf.update(json.loads(os.environ.get("TEST_CONF", "{}")))
if idem is not None:
    app.conf.idem = idem
    install_lanes(app)


@app.task(shared=False, name="lanes.note")
def note(lane: str, number: int, busy_s: float = 0.0, sent_s: float = 0.0) -> None:
    """Note that it runs, when, and how long ago it was sent; then be busy."""
    now_s = time.time()
    wait_s = now_s - (sent_s or now_s)
    Effects.from_env().bump(lane, number=number, wait_s=wait_s, busy_s=busy_s)
    if busy_s:
        time.sleep(busy_s)


@app.task(shared=False, name="lanes.held")
def held(key: str, gate: str) -> None:
    """Note that it runs, and its end, which comes when there is a file of this name."""
    Effects.from_env().bump(key)
    while not os.path.exists(gate):
        time.sleep(0.02)
    Effects.from_env().bump(f"{key}:end")


@app.task(shared=False, name="lanes.stubborn", soft_time_limit=1)
def stubborn(key: str) -> None:
    """Note that the soft time limit has come, and go on for a while."""
    try:
        time.sleep(60)
    except SoftTimeLimitExceeded:
        Effects.from_env().bump(f"{key}:soft limit")
    time.sleep(5)
    Effects.from_env().bump(f"{key}:end")


@app.task(shared=False, name="lanes.limited", rate_limit="6/m")
def limited(lane: str, number: int) -> None:
    """The same at most six times a minute."""
    Effects.from_env().bump(lane, number=number)


@app.task(shared=False, name="lanes.low_by_itself", lane="low")
def low_by_itself(key: str) -> None:
    """A plain task whose lane is an attribute."""
    Effects.from_env().bump(key)


@app.task(shared=False, name="lanes.flaky", bind=True, max_retries=3)
def flaky(self: Any, key: str) -> None:
    """Fails once, and notes the queue that each attempt came from."""
    Effects.from_env().bump(
        key, queue=self.request.delivery_info["routing_key"], retries=self.request.retries
    )
    if self.request.retries == 0:
        raise self.retry(countdown=0)
