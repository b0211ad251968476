"""A Celery app with plain tasks only, whose workers keep their messages visible to none.

Read from the environment: ``TEST_BROKER``, ``TEST_EFFECTS``, ``TEST_LEASE_S`` (3),
``TEST_KEEPER`` ("0" turns the keeper off), ``TEST_OPTIONS`` (JSON, more transport options),
``TEST_CONF`` (JSON, more settings), ``TEST_MARK`` (what a worker writes on its effects).
"""

from __future__ import annotations

import json
import os
import time

from celery import Celery
from celery.exceptions import Reject
from kombu import Exchange, Queue

from celery_idem.visibility import holder_lost, install_visibility
from tests.support.effects import Effects

TOPICAL = Queue("topical", Exchange("topics", type="topic"), routing_key="news.#")

app = Celery("kept", broker=os.environ["TEST_BROKER"], set_as_current=False)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_enable_remote_control=False,
    # VT3: kombu itself gives back after 3 s, if it is let
    broker_transport_options={
        "visibility_timeout": 3,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        **json.loads(os.environ.get("TEST_OPTIONS", "{}")),
    },
    task_queues=[
        Queue("celery", Exchange("celery", type="direct"), routing_key="celery"),
        TOPICAL,
    ],
    idem={
        "lease_s": float(os.environ.get("TEST_LEASE_S", "3")),
        "visibility_keeper": os.environ.get("TEST_KEEPER", "1") == "1",
    },
)
app.conf.update(json.loads(os.environ.get("TEST_CONF", "{}")))
install_visibility(app)

MARK = os.environ.get("TEST_MARK", "")


@holder_lost.connect(weak=False)
def on_holder_lost(messages, **_):
    Effects.from_env().bump("lost", mark=MARK, count=len(messages))


@app.task(name="kept.note")
def note(key: str) -> None:
    Effects.from_env().bump(key, mark=MARK)


@app.task(name="kept.work", bind=True)
def work(self, key: str, seconds: float) -> None:
    """Note ``key:start``, be busy for a while, note ``key:end``."""
    effects = Effects.from_env()
    redelivered = bool((self.request.delivery_info or {}).get("redelivered"))
    effects.bump(f"{key}:start", mark=MARK, redelivered=redelivered)
    time.sleep(seconds)
    effects.bump(f"{key}:end", mark=MARK)


@app.task(name="kept.gated")
def gated(key: str, gate: str) -> None:
    """Note ``key:start``, wait for a file that the test makes, note ``key:end``."""
    effects = Effects.from_env()
    effects.bump(f"{key}:start", mark=MARK)
    gives_up = time.monotonic() + 120
    while not os.path.exists(gate) and time.monotonic() < gives_up:
        time.sleep(0.02)
    effects.bump(f"{key}:end", mark=MARK)


@app.task(name="kept.early", acks_late=False)
def early(key: str) -> None:
    Effects.from_env().bump(key, mark=MARK)


@app.task(name="kept.refuse")
def refuse(key: str, times: int) -> None:
    """Send the message back until it came ``times`` times."""
    effects = Effects.from_env()
    effects.bump(key, mark=MARK)
    if effects.count(key) < times:
        raise Reject("not now", requeue=True)
    effects.bump(f"{key}:taken", mark=MARK)
