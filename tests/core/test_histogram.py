"""Run times in buckets: as exact as promised, mergeable, honest about small samples (S-V7)."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_idem.core.histogram import (
    GROWTH,
    LAST_BUCKET,
    LONGEST_S,
    SHORTEST_S,
    Histogram,
    bucket_of,
    days_back,
    merged,
    middle_s,
    today,
    upper_s,
)

TIMES = st.floats(SHORTEST_S, LONGEST_S)
SAMPLES = st.lists(TIMES, min_size=1, max_size=60)


@given(TIMES)
def test_a_time_lies_in_its_bucket(seconds):
    bucket = bucket_of(seconds)

    assert seconds <= upper_s(bucket) * (1 + 1e-8)
    assert bucket == 0 or seconds > upper_s(bucket - 1) * (1 - 1e-8)


@given(TIMES)
def test_the_middle_of_a_bucket_is_less_than_five_percent_away(seconds):
    assert abs(middle_s(bucket_of(seconds)) / seconds - 1) < 0.05


@pytest.mark.parametrize(("seconds", "bucket"), [(-1.0, 0), (0.0, 0), (1e9, LAST_BUCKET)])
def test_what_no_bucket_is_for_is_in_the_first_or_the_last(seconds, bucket):
    assert bucket_of(seconds) == bucket


@pytest.mark.parametrize("bucket", range(LAST_BUCKET))
def test_the_edge_of_a_bucket_belongs_to_it(bucket):
    assert bucket_of(upper_s(bucket)) == bucket
    assert bucket_of(upper_s(bucket) * 1.0001) == bucket + 1


def test_up_to_the_shortest_time_is_that():
    assert middle_s(0) == upper_s(0) == SHORTEST_S


def test_a_day_ends_at_midnight_utc_and_days_end_with_today():
    assert today(lambda: 20_000 * 86400.0) == 20_000
    assert today(lambda: 20_000 * 86400.0 - 0.001) == 19_999

    before = today()
    days = days_back(3)
    last = days[-1]

    assert before <= last <= today()
    assert list(days) == [last - 2, last - 1, last]


@given(SAMPLES, st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_that_of_the_sample_but_for_five_percent(times, part):
    exact = sorted(times)[math.ceil(part * len(times)) - 1]

    assert Histogram.of(times).quantile(part) == pytest.approx(exact, rel=0.05)


@given(SAMPLES)
def test_no_run_was_longer_than_the_longest(times):
    longest_s = Histogram.of(times).longest_s

    assert max(times) <= longest_s * (1 + 1e-8)
    assert longest_s <= max(times) * GROWTH * (1 + 1e-8)


@given(SAMPLES, SAMPLES)
def test_two_together_are_the_histogram_of_all(some, others):
    assert Histogram.of(some) + Histogram.of(others) == Histogram.of(some + others)


@given(SAMPLES)
def test_the_sum_is_right_but_for_five_percent(times):
    histogram = Histogram.of(times)

    assert histogram.runs == len(times)
    assert histogram.total_s == pytest.approx(sum(times), rel=0.05)
    assert histogram.mean_s == pytest.approx(sum(times) / len(times), rel=0.05)


def test_nothing_is_known_of_no_runs():
    nothing = Histogram()

    assert (nothing.runs, nothing.mean_s, nothing.longest_s, nothing.quantile(0.5)) == (0, 0, 0, 0)
    assert nothing.quantile_at_most(0.5) is None
    assert nothing.share_above(1.0) == 0
    assert nothing.peaks() == ()


def test_the_longest_and_the_part_within_are_those_of_the_last_bucket():
    two = Histogram({3: 1, 9: 1})

    assert two.longest_s == upper_s(9)
    assert [two.quantile(part) for part in (0.0, 0.5, 0.51, 1.0)] == [
        middle_s(3),
        middle_s(3),
        middle_s(9),
        middle_s(9),
    ]


def test_days_and_workers_are_merged_by_task_and_lane():
    counts = [(("pay", "critical", 3), 2), (("pay", "critical", 3), 1), (("pay", "low", 3), 5)]

    found = merged(counts)

    assert found == {("pay", "critical"): Histogram({3: 3}), ("pay", "low"): Histogram({3: 5})}


def test_the_share_above_a_time_counts_whole_buckets():
    histogram = Histogram.of([1.0] * 90 + [10.0] * 10)

    assert histogram.share_above(5.0) == 0.1
    assert histogram.share_above(10.0) == 0
    assert histogram.share_above(0.1) == 1


# --- how sure


def test_the_99th_percentile_is_bounded_from_299_runs_on():
    """0.99 ^ 298 is still above 5 %, 0.99 ^ 299 is not: by hand."""
    assert Histogram.of([1.0] * 298).quantile_at_most(0.99) is None
    assert Histogram.of([1.0] * 299).quantile_at_most(0.99) == upper_s(bucket_of(1.0))


def test_the_bound_of_a_median_of_ten_is_the_ninth():
    """Half of 10, and 1.645 × √(10 × ½ × ½) = 2.6 above it, rounded up, and one: by hand."""
    ten = Histogram({10 * n: 1 for n in range(1, 11)})

    assert ten.quantile_at_most(0.5) == upper_s(90)


@pytest.mark.parametrize("part", [0.01, 0.05])
def test_one_run_bounds_a_part_that_is_rarely_as_small(part):
    assert Histogram({7: 1}).quantile_at_most(part) == upper_s(7)


def test_the_bound_holds_in_nineteen_of_twenty_samples():
    draw = random.Random(7)
    true_p99_s = math.exp(2.3263)  # of exp(N(0, 1))
    held = 0
    for _ in range(400):
        sample = Histogram.of(draw.lognormvariate(0, 1) for _ in range(600))
        bound_s = sample.quantile_at_most(0.99)
        held += bound_s is not None and bound_s >= true_p99_s

    assert held >= 0.95 * 400 - 2 * math.sqrt(400 * 0.95 * 0.05)


# --- two kinds of work under one name


def test_two_kinds_of_work_are_two_peaks():
    draw = random.Random(1)
    quick = [draw.lognormvariate(math.log(0.02), 0.4) for _ in range(600)]
    slow = [draw.lognormvariate(math.log(8.0), 0.3) for _ in range(400)]

    first, second = Histogram.of(quick + slow).peaks()

    assert first.at_s == pytest.approx(0.02, rel=0.3)
    assert second.at_s == pytest.approx(8.0, rel=0.3)
    assert (first.share, second.share) == (pytest.approx(0.6), pytest.approx(0.4))


@pytest.mark.parametrize("spread", [0.05, 0.3, 0.8, 1.2])
@pytest.mark.parametrize("runs", [100, 300, 3000])
def test_one_kind_of_work_is_one_peak_however_wide(spread, runs):
    for seed in range(40):
        draw = random.Random(seed)
        times = [draw.lognormvariate(-2, spread) for _ in range(runs)]

        assert len(Histogram.of(times).peaks()) == 1


@pytest.mark.parametrize(
    ("counts", "peaks"),
    [
        ({50: 60, 80: 40}, [(50, 0.6), (80, 0.4)]),
        ({50: 50, 60: 50}, [(50, 0.5), (60, 0.5)]),  # between them a third of their height
        ({50: 50, 59: 50}, [(50, 0.5), (59, 0.5)]),  # a half
        ({50: 50, 58: 50}, [(50, 1.0)]),  # two thirds
        ({6: 50, 9: 50}, [(9, 1.0)]),  # all of it: as high from 6 to 9
        ({15: 50, 22: 10, 27: 60}, [(15, 50 / 120), (27, 70 / 120)]),
        ({10: 40, 14: 5, 21: 60}, [(10, 45 / 105), (21, 60 / 105)]),
        ({27: 60, 33: 20, 35: 15, 41: 60, 43: 50}, [(27, 95 / 205), (41, 110 / 205)]),
        ({9: 15, 10: 50, 13: 20, 16: 10, 21: 60, 26: 5}, [(10, 85 / 160), (21, 75 / 160)]),
        ({11: 60, 16: 50, 18: 30, 22: 60}, [(18, 1.0)]),
        ({50: 60, 58: 40}, [(50, 1.0)]),
        ({50: 40, 58: 60}, [(58, 1.0)]),
        ({20: 30, 50: 40, 58: 30}, [(20, 0.3), (50, 0.7)]),
        ({20: 30, 28: 30, 60: 40}, [(20, 0.6), (60, 0.4)]),
        ({50: 90, 80: 10}, [(50, 0.9), (80, 0.1)]),
        ({50: 91, 80: 9}, [(50, 0.91)]),
        ({0: 50, 30: 50}, [(0, 0.5), (30, 0.5)]),
        ({1: 50, 30: 50}, [(1, 0.5), (30, 0.5)]),
        ({40: 20, 50: 60, 60: 20}, [(40, 0.2), (50, 0.6), (60, 0.2)]),
        ({50: 100}, [(50, 1.0)]),
        ({50: 99}, []),
    ],
)
def test_hills_are_parted_by_valleys_at_most_half_as_high(counts, peaks):
    found = Histogram(counts).peaks()

    assert [(peak.at_s, peak.share) for peak in found] == [
        (middle_s(bucket), share) for bucket, share in peaks
    ]


def test_a_few_stragglers_are_no_second_peak():
    assert len(Histogram.of([0.02] * 950 + [8.0] * 50).peaks()) == 1


def test_too_few_runs_have_no_peaks():
    assert Histogram.of([0.02] * 50 + [8.0] * 49).peaks() == ()
