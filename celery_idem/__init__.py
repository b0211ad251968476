"""Background jobs whose effect happens once, on queues that deliver at least once."""

from __future__ import annotations

from celery_idem.core.errors import (
    AlreadyProcessed,
    ConfigError,
    IdemError,
    InProgress,
    KeyInvalid,
    KeyReused,
    KeyRevoked,
    LeaseLost,
    Poisoned,
    ResultUnavailable,
    StepMisused,
    StepUncertain,
    StoreUnavailable,
)
from celery_idem.guard import idempotent
from celery_idem.task import IdempotentTask
from celery_idem.transport import register as _register_transports

__version__ = "0.1.0"

_register_transports()

__all__ = [
    "AlreadyProcessed",
    "ConfigError",
    "IdemError",
    "IdempotentTask",
    "InProgress",
    "KeyInvalid",
    "KeyReused",
    "KeyRevoked",
    "LeaseLost",
    "Poisoned",
    "ResultUnavailable",
    "StepMisused",
    "StepUncertain",
    "StoreUnavailable",
    "idempotent",
]
