"""A task in a module that Celery imports in workers only."""

from __future__ import annotations

from celery import shared_task

from celery_idem import IdempotentTask


@shared_task(base=IdempotentTask, name="imported.work", idem_key="work:{name}")
def work(name: str) -> str:
    return name
