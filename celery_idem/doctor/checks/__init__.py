"""All checks, in the order of their ids."""

from __future__ import annotations

from celery_idem.doctor.checks import (
    failure_deleted,
    lease_stops,
    no_lane,
    no_time_limit,
    prefetch,
    reserve,
    result_expiry,
    retention,
    settings,
    strict_order,
    terms,
    timeout_acked,
    visibility_delay,
    visibility_run,
    worker_lost,
)
from celery_idem.doctor.finding import Check

#: every check there is
CHECKS: tuple[Check, ...] = (
    settings.CHECK,
    retention.CHECK,
    terms.CHECK,
    visibility_run.CHECK,
    visibility_delay.CHECK,
    lease_stops.CHECK,
    no_time_limit.CHECK,
    worker_lost.CHECK,
    failure_deleted.CHECK,
    timeout_acked.CHECK,
    prefetch.CHECK,
    strict_order.CHECK,
    no_lane.CHECK,
    reserve.CHECK,
    result_expiry.CHECK,
)
