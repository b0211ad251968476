"""A worker's app without celery_idem: the yardstick."""

from __future__ import annotations

from benchmarks.apps import make_app

app = make_app("stock")


@app.task(name="stock.noop", acks_late=True, reject_on_worker_lost=True, ignore_result=True)
def noop(number: int) -> None:
    """Nothing."""


@app.task(name="stock.answer", acks_late=True, reject_on_worker_lost=True)
def answer(number: int) -> int:
    """Nothing, with a result that is kept."""
    return number
