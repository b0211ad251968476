"""From measured run times to settings: each rule, by hand (S-V7)."""

from __future__ import annotations

from typing import Any

import pytest

from celery_idem.core.histogram import Histogram
from celery_idem.core.order import Lane
from celery_idem.core.retry_window import RetryPolicy
from celery_idem.tuning.facts import Facts, LaneFacts, Proposal, TaskFacts, how_sure, rounded_up
from celery_idem.tuning.propose import advise

MANY = 1000
RETRIES = RetryPolicy("pay", max_retries=3, delay_s=180.0, redelivery_s=3600.0)


def ran(seconds: float, runs: int = MANY) -> Histogram:
    return Histogram.of([seconds] * runs)


def task(seconds: float = 1.0, runs: int = MANY, **given: Any) -> TaskFacts:
    return TaskFacts("pay", ran(seconds, runs), **{"policies": (RETRIES,), **given})


def facts(*tasks: TaskFacts, **given: Any) -> Facts:
    return Facts(tasks or (task(),), **given)


def proposed(found: Facts, setting: str, place: str | None = None) -> Proposal:
    [one] = [
        p for p in advise(found).proposals
        if p.setting == setting and (place is None or p.place == place)
    ]  # fmt: skip
    return one


def settings_of(found: Facts) -> set[str]:
    return {p.setting for p in advise(found).proposals}


# --- lease


@pytest.mark.parametrize(
    ("p99_s", "lease_s"),
    [(0.02, 5.0), (1.0, 5.0), (3.0, 10.0), (5.0, 20.0), (9.0, 30.0), (600.0, 30.0)],
)
def test_a_lease_is_three_times_the_99th_percentile_between_5_and_30_seconds(p99_s, lease_s):
    found = proposed(facts(task(p99_s)), "lease_s")

    assert found.proposed == lease_s
    assert f"{lease_s:g} s after its last sign of life" in found.reason


def test_a_lease_goes_by_idempotent_tasks_alone():
    plain = TaskFacts("report", ran(60.0), idempotent=False)

    assert proposed(facts(task(0.1), plain), "lease_s").proposed == 5.0


def test_nothing_is_proposed_from_nothing():
    found = facts(task(runs=0), visibility_timeout_s=3600.0)

    assert not any(p.changes for p in advise(found).proposals)
    assert proposed(found, "lease_s").sure == "a guess: 0 runs"


# --- visibility timeout


def test_a_visibility_timeout_covers_what_is_reserved_a_whole_run_and_the_longest_retry_delay():
    """2 × (5 × 100 s + 180 s) = 1360 s, by hand; rounded up to minutes."""
    found = facts(task(time_limit_s=100.0), visibility_timeout_s=60.0, prefetch=4)

    assert proposed(found, "visibility_timeout").proposed == 1380.0


def test_with_lanes_nothing_is_reserved():
    """2 × (1 × 100 s + 180 s) = 560 s."""
    lanes = (LaneFacts("pay", ran(1.0), Lane("pay", queue="pay")),)
    found = facts(task(time_limit_s=100.0), visibility_timeout_s=60.0, lanes=lanes)

    assert proposed(found, "visibility_timeout").proposed == 570.0


@pytest.mark.parametrize(
    ("now_s", "kept", "fits"),
    [(600.0, True, False), (3600.0, True, True), (86400.0, True, True), (86400.0, False, False)],
)
def test_a_visibility_timeout_that_fits_stays(now_s, kept, fits):
    """Too long is a fault only where no keeper brings a dead worker's messages back."""
    found = facts(task(time_limit_s=100.0), visibility_timeout_s=now_s, kept=kept)

    assert proposed(found, "visibility_timeout").changes is not fits


def test_a_broker_without_a_visibility_timeout_gets_none():
    assert "visibility_timeout" not in settings_of(facts(visibility_timeout_s=None))


# --- time limits


def test_limits_are_three_times_the_longest_run_and_the_soft_one_is_first():
    """Longest 10 s, as the edge of its bucket 10.3: soft 3 × 10.3 = 30.9 → 35, hard 35 + 5 = 40."""
    found = facts(task(10.0))

    assert proposed(found, "soft_time_limit").proposed == 35.0
    assert proposed(found, "time_limit").proposed == 40.0


def test_no_limit_is_proposed_from_fewer_runs_than_bound_the_99th_percentile():
    assert "time_limit" not in settings_of(facts(task(10.0, runs=298)))
    assert "time_limit" in settings_of(facts(task(10.0, runs=299)))


def test_a_limit_that_cuts_runs_is_raised_and_that_is_said():
    found = proposed(facts(task(10.0, time_limit_s=11.0)), "time_limit")

    assert found.proposed == 40.0
    assert "100.0% of runs come near the limit of 11 s" in found.reason


def test_a_limit_that_neither_cuts_nor_is_ten_times_too_long_stays():
    assert not proposed(facts(task(10.0, time_limit_s=60.0)), "time_limit").changes
    assert proposed(facts(task(1.0, time_limit_s=3600.0)), "time_limit").changes


# --- retention


def test_retention_is_computed_where_nothing_is_set():
    found = proposed(facts(), "retention_s")

    assert (found.now, found.changes) == (None, False)
    assert "computed by each task" in found.reason


def test_a_set_retention_is_at_least_twice_the_window_with_the_proposed_limit():
    """Longest 1 s: soft limit 30 s, hard 35 s. 2 × (3 × 180 + 4 × 35 + 3600) = 8560 s, by hand."""
    low, high = facts(retention_s=8000.0), facts(retention_s=9000.0)

    assert proposed(facts(task()), "time_limit").proposed == 35.0
    assert proposed(low, "retention_s", "idem").proposed == 8560.0
    assert not proposed(high, "retention_s", "idem").changes


# --- prefetch


@pytest.mark.parametrize(
    ("mean_s", "now", "multiplier"),
    [(0.001, 4, 64), (0.01, 4, 24), (0.05, 4, 4), (0.06, 64, 4), (5.0, 4, 1), (5.0, 1, 1)],
)
def test_what_a_process_reserves_is_a_quarter_of_a_second_of_work(mean_s, now, multiplier):
    found = proposed(facts(task(mean_s), prefetch=now), "worker_prefetch_multiplier")

    assert (found.proposed or now) == pytest.approx(multiplier, abs=2)


def test_with_lanes_the_prefetch_stays_for_it_has_no_effect():
    lanes = (LaneFacts("pay", ran(1.0), Lane("pay")),)

    found = proposed(facts(lanes=lanes, prefetch=99), "worker_prefetch_multiplier")

    assert (found.changes, "no effect" in found.reason) == (False, True)


# --- reserve, charge and weights


def lanes(critical_s: float, low_s: float, **critical: Any) -> Facts:
    return facts(
        lanes=(
            LaneFacts("critical", ran(critical_s), Lane("critical", 10.0, "critical", **critical)),
            LaneFacts("low", ran(low_s), Lane("low", 1.0, "low")),
        )
    )


@pytest.mark.parametrize(
    ("low_s", "critical", "reserve"),
    [(0.5, {}, 0), (30.0, {}, 1), (30.0, {"deadline_s": 60.0}, 0), (0.5, {"deadline_s": 0.1}, 1)],
)
def test_a_lane_gets_a_process_of_its_own_where_lower_jobs_outlast_its_promise(
    low_s, critical, reserve
):
    found = proposed(lanes(0.1, low_s, **critical), "reserve", "lanes.critical")

    assert found.proposed == reserve


def test_a_reserve_that_is_there_is_not_taken_away():
    assert not proposed(lanes(0.1, 0.1, reserve=2), "reserve", "lanes.critical").changes


def test_the_last_lane_reserves_nothing():
    assert not [p for p in advise(lanes(0.1, 30.0)).proposals if p.place == "lanes.low"]


def test_lanes_whose_jobs_are_unlike_are_charged_in_seconds():
    """10 × 0.1 s against 1 × 10 s: by messages low gets 91 % of the time."""
    found = proposed(lanes(0.1, 10.0), "charge")

    assert found.proposed == "seconds"
    assert "critical 9%, low 91%" in found.reason
    assert not proposed(lanes(0.1, 0.2), "charge").changes


def test_a_lane_that_needs_more_than_its_weight_gives_gets_more():
    """5000 of 6000 s are the first lane's, its weight gives it half: 1 × 1.25 × 0.833 / 0.5."""
    both = (
        LaneFacts("first", ran(5.0), Lane("first", 1.0)),
        LaneFacts("last", ran(1.0), Lane("last", 1.0)),
    )

    assert proposed(facts(lanes=both), "weight", "lanes.first").proposed == 3.0


# --- how sure, and what no setting mends


@pytest.mark.parametrize(
    ("runs", "word"), [(1, "a guess: 1 run"), (29, "a guess"), (30, "fair"), (299, "good")]
)
def test_it_says_what_the_size_of_the_sample_is_worth(runs, word):
    assert how_sure(ran(1.0, runs)).startswith(word)


def test_two_kinds_of_work_under_one_name_are_a_warning():
    two = TaskFacts("pay", ran(0.02, 600) + ran(8.0, 400))

    [warning] = advise(facts(two)).warnings

    assert warning.startswith("pay: two kinds of work under one name, 60% around 20 ms and 40%")


def test_runs_that_reached_their_limit_and_tasks_that_never_ran_are_warnings():
    hangs = TaskFacts("pay", ran(1.0, 90) + ran(60.0, 10), time_limit_s=60.0)

    warnings = advise(facts(hangs, never_ran=("mail",))).warnings

    assert "pay: 10.0% of runs reached the time limit of 60 s" in warnings
    assert "not run in 7 days: mail" in warnings


@pytest.mark.parametrize("seconds", [0.0001, 0.5, 1.0, 9.99, 10.01, 59.0, 601.0, 3601.0, 1e6])
def test_a_rounded_number_is_never_below_the_exact_one(seconds):
    assert rounded_up(seconds) >= seconds
