"""A Celery app with idempotent tasks, for real workers.

Read from the environment: ``TEST_BROKER``, ``TEST_BACKEND`` (default: the broker), ``TEST_IDEM``
(the ``idem`` setting as JSON), ``TEST_CONF`` (more settings as JSON), ``TEST_EFFECTS``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import Any

from celery import Celery
from celery.exceptions import Reject

from celery_idem import IdempotentTask
from tests.support.effects import Effects

broker = os.environ["TEST_BROKER"]
app = Celery("idem", broker=broker, backend=os.environ.get("TEST_BACKEND", broker))
app.conf.update(
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    idem=json.loads(os.environ.get("TEST_IDEM", '{"lease_s": 3}')),
    **json.loads(os.environ.get("TEST_CONF", "{}")),
)


def _effects() -> Effects:
    return Effects.from_env()


def _until(path: str) -> None:
    """Wait for a file that the test makes: the body goes on when the test says so."""
    gives_up = time.monotonic() + 120
    while not os.path.exists(path) and time.monotonic() < gives_up:
        time.sleep(0.02)


@app.task(base=IdempotentTask, name="idem.pay", bind=True, idem_key="order:{order}")
def pay(self: Any, order: str, result: Any = "paid", seconds: float = 0) -> Any:
    """Start, take its time, have its effect once."""
    _effects().bump(f"start:{order}", task_id=self.request.id, fence=self.fence)
    time.sleep(seconds)
    _effects().bump(order, task_id=self.request.id, fence=self.fence)
    return result


@app.task(base=IdempotentTask, name="idem.by_id", bind=True)
def by_id(self: Any, name: str, result: Any = None) -> Any:
    """No key: the task id."""
    _effects().bump(name, task_id=self.request.id)
    return result if result is not None else name


@app.task(base=IdempotentTask, name="idem.gated", bind=True, idem_key="gated:{name}")
def gated(self: Any, name: str, gate: str) -> str:
    """Start, wait for the gate file, have its effect."""
    _effects().bump(f"start:{name}", task_id=self.request.id, fence=self.fence)
    _until(gate)
    lost = self.lease_lost
    _effects().bump(name, task_id=self.request.id, fence=self.fence, lost=lost)
    return f"{name} by {self.request.id}"


@app.task(base=IdempotentTask, name="idem.gated_skip", bind=True, idem_key="gs:{name}",
          on_conflict="skip")  # fmt: skip
def gated_skip(self: Any, name: str, gate: str) -> str:
    _effects().bump(f"start:{name}")
    _until(gate)
    return name


@app.task(base=IdempotentTask, name="idem.gated_raise", bind=True, idem_key="gr:{name}",
          on_conflict="raise")  # fmt: skip
def gated_raise(self: Any, name: str, gate: str) -> str:
    _effects().bump(f"start:{name}")
    _until(gate)
    return name


@app.task(base=IdempotentTask, name="idem.fails", bind=True, idem_key="fails:{name}",
          max_retries=5, default_retry_delay=0)  # fmt: skip
def fails(self: Any, name: str, times: int, countdown: float = 0) -> int:
    """Retries ``times`` times, then succeeds."""
    _effects().bump(f"start:{name}", retries=self.request.retries)
    if self.request.retries < times:
        raise self.retry(countdown=countdown)
    _effects().bump(name)
    return int(self.request.retries)


@app.task(base=IdempotentTask, name="idem.moves", bind=True, idem_key="moves:{name}",
          max_retries=5)  # fmt: skip
def moves(self: Any, name: str, stage: int = 0) -> str:
    """Retries with other arguments: the work, and so the key, stays the same."""
    _effects().bump(f"stage:{stage}")
    if stage < 2:
        raise self.retry(args=(f"{name}'", stage + 1), countdown=0)
    return name


@app.task(base=IdempotentTask, name="idem.auto", bind=True, idem_key="auto:{name}",
          autoretry_for=(ValueError,), max_retries=2, default_retry_delay=0)  # fmt: skip
def auto(self: Any, name: str, times: int) -> int:
    _effects().bump(f"start:{name}", retries=self.request.retries)
    if self.request.retries < times:
        raise ValueError(f"try {self.request.retries}")
    return int(self.request.retries)


@app.task(base=IdempotentTask, name="idem.always_fails", bind=True, idem_key="af:{name}")
def always_fails(self: Any, name: str) -> None:
    _effects().bump(f"start:{name}")
    raise RuntimeError(f"{name} can't be done")


@app.task(base=IdempotentTask, name="idem.ends_with", bind=True, idem_key="ends:{kind}")
def ends_with(self: Any, kind: str) -> None:
    """Ends with what is no Exception, or with one that Celery ends its worker for."""
    _effects().bump(f"start:{kind}")
    raise {"cancelled": asyncio.CancelledError, "memory": MemoryError}[kind]("enough")


@app.task(base=IdempotentTask, name="idem.kills_child", bind=True, idem_key="pill:{name}")
def kills_child(self: Any, name: str, times: int) -> str:
    """SIGKILLs its own process the first ``times`` times."""
    effects = _effects()
    effects.bump(f"start:{name}", task_id=self.request.id)
    if effects.count(f"start:{name}") <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    effects.bump(name)
    return name


@app.task(base=IdempotentTask, name="idem.hangs", bind=True, idem_key="hangs:{name}",
          time_limit=2)  # fmt: skip
def hangs(self: Any, name: str, seconds: float) -> str:
    _effects().bump(f"start:{name}", task_id=self.request.id)
    time.sleep(seconds)
    _effects().bump(name)
    return name


@app.task(base=IdempotentTask, name="idem.holds_gil", bind=True, idem_key="gil:{name}")
def holds_gil(self: Any, name: str, digits: int) -> int:
    """One C call that holds the GIL for many seconds."""
    _effects().bump(f"start:{name}", fence=self.fence)
    length = len(str(hash(3**digits)))
    _effects().bump(name, fence=self.fence)
    return length


@app.task(base=IdempotentTask, name="idem.rejects", bind=True, idem_key="rej:{name}")
def rejects(self: Any, name: str, requeue: bool) -> None:
    _effects().bump(f"start:{name}")
    raise Reject("not now", requeue=requeue)


@app.task(base=IdempotentTask, name="idem.add")
def add(x: int, y: int) -> int:
    _effects().bump(f"add:{x}+{y}")
    return x + y


@app.task(base=IdempotentTask, name="idem.total")
def total(parts: list[int]) -> int:
    _effects().bump("total", parts=parts)
    return sum(parts)


@app.task(base=IdempotentTask, name="idem.note")
def note(*args: Any, **kwargs: Any) -> str:
    _effects().bump("note")
    return "noted"


@app.task(name="idem.plain")
def plain(name: str, seconds: float = 0) -> str:
    """Not idempotent, in the same app."""
    _effects().bump(f"start:{name}")
    time.sleep(seconds)
    _effects().bump(name)
    return name


@app.task(base=IdempotentTask, name="idem.strays", bind=True, idem_key="strays:{name}")
def strays(self: Any, name: str) -> None:
    """Its retry names a queue that there is not."""
    _effects().bump(f"start:{name}")
    raise self.retry(countdown=0, queue="nowhere")
