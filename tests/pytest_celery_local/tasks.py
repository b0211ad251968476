"""Tasks whose source pytest-celery copies to the worker."""

from __future__ import annotations

import time

from celery import shared_task

from tests.support.effects import Effects


@shared_task(name="local.slow")
def slow(key: str, seconds: float) -> str:
    effects = Effects.from_env()
    effects.bump(f"{key}:start")
    time.sleep(seconds)
    effects.bump(f"{key}:end")
    return key
