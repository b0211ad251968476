"""A worker's app with celery_idem, with the same tasks, plain and idempotent."""

from __future__ import annotations

from benchmarks.apps import make_app
from celery_idem import IdempotentTask

app = make_app("guarded")


@app.task(name="guarded.plain", acks_late=True, reject_on_worker_lost=True, ignore_result=True)
def plain(number: int) -> None:
    """The yardstick's task on this worker."""


@app.task(base=IdempotentTask, name="guarded.noop", ignore_result=True)
def noop(number: int) -> None:
    """The key is the task id."""


@app.task(
    base=IdempotentTask, name="guarded.keyed", idem_key="noop:{number}", ignore_result=True
)  # fmt: skip
def keyed(number: int) -> None:
    """The key is made from the arguments."""


@app.task(base=IdempotentTask, name="guarded.answer", idem_key="answer:{number}")
def answer(number: int) -> int:
    """With a result that is kept, in the record and in the backend."""
    return number
