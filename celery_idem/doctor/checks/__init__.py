"""All checks, in the order of their ids."""

from __future__ import annotations

from celery_idem.doctor.checks import retention, settings, terms
from celery_idem.doctor.finding import Check

#: every check there is
CHECKS: tuple[Check, ...] = (
    settings.CHECK,
    retention.CHECK,
    terms.CHECK,
)
