"""Other packages on the same work. One that is not installed is left out, with the reason.

What each promises differs: celery-once and celery-singleton refuse a duplicate when it is sent and
look at nothing when it runs; powertools looks when it runs. None of them survives a killed worker
without a wait for its time-out.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from benchmarks.apps import make_app

app = make_app("peers")
app.conf.ONCE = {
    "backend": "celery_once.backends.Redis",
    "settings": {"url": os.environ.get("BENCH_STORE", ""), "default_timeout": 3600},
}
app.conf.singleton_backend_url = os.environ.get("BENCH_STORE", "")
app.conf.singleton_lock_expiry = 3600

#: name of a peer → its task; or → why it is missing
TASKS: dict[str, Any] = {}
MISSING: dict[str, str] = {}

_OPTIONS: dict[str, Any] = {
    "acks_late": True,
    "reject_on_worker_lost": True,
    "ignore_result": True,
}


class _Lambda:
    """Where powertools asks how long the function may still run."""

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def _celery_once() -> Any:
    from celery_once import QueueOnce  # type: ignore[import-untyped]

    @app.task(base=QueueOnce, name="peers.once", once={"keys": ["number"]}, **_OPTIONS)
    def once(number: int) -> None:
        """Refused when it is sent while another is queued."""

    return once


def _celery_singleton() -> Any:
    from celery_singleton import Singleton  # type: ignore[import-untyped]

    @app.task(base=Singleton, name="peers.singleton", unique_on="number", **_OPTIONS)
    def singleton(number: int) -> None:
        """Refused when it is sent while another is queued."""

    return singleton


def _powertools() -> Any:
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")  # it asks, and never calls
    import redis
    from aws_lambda_powertools.utilities.idempotency import (
        IdempotencyConfig,
        idempotent_function,
    )
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import (
        RedisCachePersistenceLayer,
    )

    where = urlsplit(os.environ.get("BENCH_STORE", "redis://127.0.0.1:6379/0"))
    client: Any = redis.Redis(
        host=where.hostname or "", port=where.port or 0, decode_responses=True
    )
    config = IdempotencyConfig(expires_after_seconds=86_400)
    config.register_lambda_context(_Lambda())  # type: ignore[arg-type]

    @idempotent_function(  # type: ignore[untyped-decorator]
        data_keyword_argument="number",
        persistence_store=RedisCachePersistenceLayer(client=client),
        config=config,
    )
    def work(number: int) -> str:
        return "done"  # it replays no falsy result

    @app.task(name="peers.powertools", **_OPTIONS)
    def powertools(number: int) -> None:
        """Guarded when it runs."""
        work(number=number)

    return powertools


for _name, _make in (
    ("celery-once", _celery_once),
    ("celery-singleton", _celery_singleton),
    ("aws-lambda-powertools", _powertools),
):
    try:
        TASKS[_name] = _make()
    except ImportError as error:
        MISSING[_name] = f"not installed ({error})"
