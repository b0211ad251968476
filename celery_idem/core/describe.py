"""What is kept of a key in words: for the commands and the admin. Never what a result says."""

from __future__ import annotations

import time

from celery_idem.core.record import Record, StoredResult
from celery_idem.core.step import StepRecord


def described_result(packed: bytes | None) -> str | None:
    """Kind, type and size of a packed result."""
    if not packed:
        return None
    try:
        stored = StoredResult.unpack(packed)
    except ValueError:
        return f"{len(packed)} bytes"
    if stored.kind.value == "inline":
        return f"{len(stored.payload)} bytes of {stored.content_type}"
    return str(stored.kind.value)


def described_step(packed: bytes) -> str:
    """How the step stands, and under which function."""
    try:
        step = StepRecord.unpack(packed)
    except ValueError:
        return f"{len(packed)} bytes"
    error = f" with {step.error}" if step.error else ""
    return f"{step.state.value}{error} ({step.function})"


def when(ms: int) -> str | None:
    """A store's time in UTC."""
    if not ms:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ms / 1000)) + "Z"


def task_of(record: Record) -> str:
    """The task whose record it is; in brackets what is no task's: a cool-down, a step that tasks
    share, plain code.

    >>> task_of(Record("shop.pay:order:7", runs=1, task_id="t1"))
    'shop.pay'
    >>> task_of(Record("shop.pay%cooldown:order:7", runs=1))
    '(cool-downs)'
    """
    scope, colon, _ = record.key.partition(":")
    if scope == "%step":
        return "(shared steps)"
    if scope.endswith("%cooldown"):
        return "(cool-downs)"
    # a task's claim has its id; a key that was revoked before anybody claimed it has none yet
    if not colon or (record.runs and not record.task_id):
        return "(plain code)"
    return scope.replace("%3A", ":").replace("%25", "%")
