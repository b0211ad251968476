"""A Celery app whose jobs end badly, for the tests of dead letters.

Read from the environment: ``TEST_BROKER``, ``TEST_BACKEND`` (default: the broker), ``TEST_IDEM``,
``TEST_CONF`` (JSON), ``TEST_EFFECTS``, ``TEST_NEW_CODE`` (the deploy that knows ``letters.new``),
``TEST_SCHEME`` (the broker's, for a transport other than kombu's own), ``TEST_DJANGO`` (in a Django
project, for letters in its database).
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from celery import Celery
from celery.exceptions import Reject

from celery_idem import IdempotentTask
from celery_idem.transport import buried
from tests.support.effects import Effects

if os.environ.get("TEST_DJANGO"):
    from tests.django import ready  # noqa: F401

broker = os.environ["TEST_BROKER"]
backend = os.environ.get("TEST_BACKEND", broker)
broker = broker.replace("redis:", os.environ.get("TEST_SCHEME", "redis") + ":", 1)
app = Celery("letters", broker=broker, backend=backend)
app.conf.update(
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    idem={"lease_s": 3, **json.loads(os.environ.get("TEST_IDEM", "{}"))},
    **json.loads(os.environ.get("TEST_CONF", "{}")),
)


def _effects() -> Effects:
    return Effects.from_env()


def _mended(name: str) -> bool:
    """Whether the test has mended the cause: the file of this name is there."""
    return bool(name) and os.path.exists(name)


@app.task(base=IdempotentTask, name="letters.good", bind=True, idem_key="good:{name}")
def good(self: Any, name: str) -> str:
    _effects().bump(name)
    return name


@app.task(base=IdempotentTask, name="letters.breaks", bind=True, idem_key="breaks:{name}")
def breaks(self: Any, name: str, mended: str = "") -> str:
    """Two steps; the second fails until the test has mended its cause."""
    _effects().bump(f"start:{name}", task_id=self.request.id, replays=self.request.headers)
    self.step("first", lambda: _effects().bump(f"first:{name}"))
    if not _mended(mended):
        raise RuntimeError(f"{name} can't be done")
    _effects().bump(name)
    return name


@app.task(base=IdempotentTask, name="letters.waits", bind=True, idem_key="waits:{name}")
def waits(self: Any, name: str, gate: str) -> str:
    """Wait for the gate file."""
    gives_up = time.monotonic() + 120
    while not _mended(gate) and time.monotonic() < gives_up:
        time.sleep(0.02)
    _effects().bump(name)
    return name


@app.task(base=IdempotentTask, name="letters.other", bind=True, idem_key="other:{name}")
def other(self: Any, name: str) -> None:
    raise LookupError(f"no such customer: {name}")


@app.task(base=IdempotentTask, name="letters.retries", bind=True, idem_key="retries:{name}",
          max_retries=2)  # fmt: skip
def retries(self: Any, name: str, mended: str = "") -> str:
    _effects().bump(f"start:{name}", retries=self.request.retries)
    if not _mended(mended):
        raise self.retry(countdown=0, exc=ValueError("not yet"))
    _effects().bump(name)
    return name


@app.task(base=IdempotentTask, name="letters.delayed", bind=True, idem_key="delayed:{name}",
          max_retries=3)  # fmt: skip
def delayed(self: Any, name: str, mended: str = "") -> str:
    _effects().bump(f"start:{name}", retries=self.request.retries)
    if not _mended(mended):
        raise self.retry(countdown=2, exc=ValueError("not yet"))
    _effects().bump(name)
    return name


@app.task(base=IdempotentTask, name="letters.rejects", bind=True, idem_key="rejects:{name}")
def rejects(self: Any, name: str, mended: str = "") -> str:
    _effects().bump(f"start:{name}")
    if not _mended(mended):
        raise Reject("refused", requeue=False)
    _effects().bump(name)
    return name


@app.task(base=IdempotentTask, name="letters.pill", bind=True, idem_key="pill:{name}")
def pill(self: Any, name: str, mended: str = "") -> str:
    """Kills its own process until the test has mended its cause."""
    _effects().bump(f"start:{name}", task_id=self.request.id)
    if not _mended(mended):
        os.kill(os.getpid(), signal.SIGKILL)
    _effects().bump(name)
    return name


@app.task(base=IdempotentTask, name="letters.slow", bind=True, idem_key="slow:{name}")
def slow(self: Any, name: str, seconds: float) -> str:
    _effects().bump(f"start:{name}")
    time.sleep(seconds)
    _effects().bump(name)
    return name


@app.task(base=IdempotentTask, name="letters.hangs", bind=True, idem_key="hangs:{name}",
          time_limit=1)  # fmt: skip
def hangs(self: Any, name: str, seconds: float = 60) -> str:
    _effects().bump(f"start:{name}", task_id=self.request.id)
    time.sleep(seconds)
    _effects().bump(name)
    return name


@app.task(base=IdempotentTask, name="letters.hangs_again", bind=True, idem_key="again:{name}",
          time_limit=1, acks_on_timeout=False, acks_on_failure_or_timeout=False)  # fmt: skip
def hangs_again(self: Any, name: str, times: int) -> str:
    """Hangs the first ``times`` times."""
    effects = _effects()
    effects.bump(f"start:{name}", task_id=self.request.id)
    if effects.count(f"start:{name}") <= times:
        time.sleep(60)
    effects.bump(name)
    return name


@app.task(base=IdempotentTask, name="letters.unserialisable", bind=True, serializer="json",
          idem_key="unser:{name}")  # fmt: skip
def unserialisable(self: Any, name: str) -> Any:
    return object()


@app.task(base=IdempotentTask, name="letters.note", bind=True, idem_key="note:{name}")
def note(self: Any, *args: Any, name: str = "note", **kwargs: Any) -> str:
    _effects().bump(name)
    return name


@app.task(name="letters.heard")
def heard(*args: Any, name: str = "heard", **kwargs: Any) -> str:
    """An errback or a chord's body, not idempotent: every call is counted."""
    _effects().bump(name)
    return name


@app.task(name="letters.plain_breaks", acks_late=True)
def plain_breaks(name: str, mended: str = "") -> str:
    _effects().bump(f"start:{name}")
    if not _mended(mended):
        raise RuntimeError(f"plain {name} can't be done")
    _effects().bump(name)
    return name


@app.task(name="letters.plain_pill", acks_late=True)
def plain_pill(name: str) -> None:
    """Kills its own process, and asks for no second try."""
    _effects().bump(f"start:{name}")
    os.kill(os.getpid(), signal.SIGKILL)


if os.environ.get("TEST_QUICK_SWEEP"):
    buried.EVERY_S = 1.0


if os.environ.get("TEST_NEW_CODE"):

    @app.task(base=IdempotentTask, name="letters.new", bind=True, idem_key="new:{name}")
    def new(self: Any, name: str) -> str:
        _effects().bump(name)
        return name


@app.task(base=IdempotentTask, name="letters.by_id", bind=True)
def by_id(self: Any, name: str, gate: str) -> str:
    """No key: the task id. With a gate it waits, and fails then."""
    _effects().bump(f"start:{name}", task_id=self.request.id)
    gives_up = time.monotonic() + 120
    while gate and not _mended(gate) and time.monotonic() < gives_up:
        time.sleep(0.02)
    if gate:
        raise RuntimeError(f"{name} can't be done")
    return name
