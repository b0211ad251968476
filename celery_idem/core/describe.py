"""What is kept of a key in words: for the commands and the admin. Never what a result says."""

from __future__ import annotations

import time

from celery_idem.core.record import StoredResult
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


def task_of(key: str) -> str:
    """The task's name in a record's key; plain code has none."""
    return key.partition(":")[0] if ":" in key else "(plain code)"
