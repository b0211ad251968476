"""All checks, in the order of their ids."""

from __future__ import annotations

from celery_idem.doctor.checks import (
    clocks,
    consumer_timeout,
    eviction,
    failure_deleted,
    foreign_policy,
    lane_consumers,
    lease_stops,
    no_lane,
    no_time_limit,
    persistence,
    prefetch,
    reserve,
    result_expiry,
    retention,
    settings,
    strict_order,
    terms,
    timeout_acked,
    versions,
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
    consumer_timeout.CHECK,
    lease_stops.CHECK,
    no_time_limit.CHECK,
    worker_lost.CHECK,
    failure_deleted.CHECK,
    timeout_acked.CHECK,
    prefetch.CHECK,
    strict_order.CHECK,
    lane_consumers.CHECK,
    no_lane.CHECK,
    reserve.CHECK,
    eviction.CHECK,
    persistence.CHECK,
    foreign_policy.CHECK,
    result_expiry.CHECK,
    clocks.CHECK,
    versions.CHECK,
)
