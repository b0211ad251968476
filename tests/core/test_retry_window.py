"""The arithmetic of S-I3: a done record outlives the last copy of its job at least twofold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_idem.core.errors import ConfigError
from celery_idem.core.retry_window import (
    ENDLESS_RETENTION_S,
    LEAST_RETENTION_S,
    RetryPolicy,
    retention,
    retry_window,
    spoken,
)


def policy(**given):
    fields = {"max_retries": 3, "delay_s": 180.0, "redelivery_s": 3600.0, **given}
    return RetryPolicy("shop.complete_order", **fields)


@pytest.mark.parametrize(
    ("given", "total_s"),
    [
        ({"max_retries": 0}, 3600),
        ({}, 3 * 180 + 3600),
        ({"run_s": 60}, 3 * 180 + 4 * 60 + 3600),
        ({"redelivery_s": 0}, 540),
        ({"backoff": 1, "max_retries": 8}, 1 + 2 + 4 + 8 + 16 + 32 + 64 + 128 + 3600),
        ({"backoff": 1, "max_retries": 12}, 1023 + 2 * 600 + 3600),
        ({"backoff": 5, "max_retries": 3}, 5 + 10 + 20 + 3600),
        ({"backoff": 700, "max_retries": 4}, 4 * 600 + 3600),
        ({"backoff": 1, "backoff_max_s": 10, "max_retries": 6}, 1 + 2 + 4 + 8 + 10 + 10 + 3600),
        ({"backoff": 1, "max_retries": 100_000}, 1023 + 600 * (100_000 - 10) + 3600),
    ],
)
def test_the_window_is_every_delay_at_its_longest_and_every_run_and_a_redelivery(given, total_s):
    assert retry_window(policy(**given)).total_s == total_s


@given(st.integers(0, 40), st.floats(0.1, 1000), st.floats(0.1, 5000))
def test_the_backoffs_sum_is_the_sum_of_celerys_delays(retries, factor, longest_s):
    from celery.utils.time import get_exponential_backoff_interval

    window = retry_window(
        policy(max_retries=retries, backoff=factor, backoff_max_s=longest_s, redelivery_s=0)
    )

    by_celery = [
        get_exponential_backoff_interval(factor, n, longest_s, full_jitter=False)
        for n in range(retries)
    ]
    assert window.delays_s == pytest.approx(sum(by_celery))


@pytest.mark.parametrize(
    ("given", "pause_s"),
    [
        ({"max_retries": 3}, 180),
        ({"backoff": 1, "max_retries": 0}, 0),
        ({"backoff": 1, "max_retries": 1}, 1),
        ({"backoff": 1, "max_retries": 3}, 4),
        ({"backoff": 5, "max_retries": 3}, 20),
        ({"backoff": 1, "max_retries": 10}, 512),
        ({"backoff": 1, "max_retries": 11}, 600),
        ({"backoff": 1, "max_retries": 100_000}, 600),
        ({"backoff": 1, "max_retries": 5, "backoff_max_s": 3600}, 16),
        ({"backoff": 1, "max_retries": None}, 600),
    ],
)
def test_the_longest_pause_of_a_backoff_is_the_one_before_its_last_retry(given, pause_s):
    assert policy(**given).pause_s == pause_s


def test_retries_without_end_have_a_window_without_end():
    window = retry_window(policy(max_retries=None))

    assert window.endless
    assert retention(window, None) == ENDLESS_RETENTION_S


def test_a_short_window_is_kept_for_a_day():
    assert retention(retry_window(policy(max_retries=0)), None) == LEAST_RETENTION_S == 86400


def test_a_long_window_is_kept_twice():
    window = retry_window(policy(max_retries=20, delay_s=7200))

    assert retention(window, None) == 2 * (20 * 7200 + 3600)


def test_an_explicit_retention_of_twice_the_window_is_taken():
    window = retry_window(policy())

    assert retention(window, 2 * 4140) == 8280


def test_a_shorter_one_is_refused_with_the_sum_and_the_remedy():
    window = retry_window(policy(backoff=1, max_retries=12, run_s=30))

    with pytest.raises(ConfigError) as refused:
        retention(window, 3600)

    text = str(refused.value)
    assert "3600 s is shorter than twice the retry window of shop.complete_order" in text
    assert "12 retries, backoff 1 × 2^n, at most 600 s each: 2223 s" in text
    assert "13 runs of 30 s" in text
    assert "redelivery 3600 s = 6213 s" in text
    assert "set retention_s >= 12426, or lower max_retries" in text


def test_what_the_refusal_proposes_is_taken():
    window = retry_window(policy(backoff=0.3, max_retries=7, run_s=0.7))
    with pytest.raises(ConfigError) as refused:
        retention(window, 1)

    proposed = float(str(refused.value).partition("retention_s >= ")[2].partition(",")[0])

    assert retention(window, proposed) == proposed


@pytest.mark.parametrize(
    "given", [{"backoff": 0.1234567}, {"run_s": 0.11111}, {"delay_s": 1e-7}, {"delay_s": 1234567}]
)
def test_what_the_refusal_proposes_is_taken_with_odd_numbers_too(given):
    for max_retries in (2, None):
        window = retry_window(policy(max_retries=max_retries, **given))
        with pytest.raises(ConfigError) as refused:
            retention(window, 1)

        proposed = float(str(refused.value).partition("retention_s >= ")[2].partition(",")[0])

        assert retention(window, proposed) == proposed


def test_large_numbers_are_written_out():
    window = retry_window(policy(max_retries=20, delay_s=1_234_567))

    with pytest.raises(ConfigError, match="20 retries, 1234567 s each: 24691340 s"):
        retention(window, 1)


def test_of_endless_retries_the_longest_pause_counts():
    window = retry_window(policy(max_retries=None, backoff=1, run_s=100))

    assert retention(window, 2 * (600 + 100 + 3600)) == 8600
    with pytest.raises(ConfigError, match=r"longest pause .*retries never end.*>= 8600"):
        retention(window, 8599)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.2, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3725, "1 h 2 min"),
        (18720, "5 h 12 min"),
        (86400, "1 d"),
        (90061, "1 d 1 h"),
        (86405, "1 d 5 s"),
    ],
)
def test_times_are_spoken_in_their_two_largest_units(seconds, words):
    assert spoken(seconds) == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_retries": None}, "max_retries=None never ends"),
        (
            {"max_retries": 2, "delay_s": 180.0},
            "2 retries, 180 s each: 360 s + redelivery 3600 s = 3960 s",
        ),
        (
            {"max_retries": 2, "delay_s": 0.25, "run_s": 10.0},
            "2 retries, 0.25 s each: 0.5 s + 3 runs of 10 s + redelivery 3600 s = 3630.5 s",
        ),
        (
            {"max_retries": 0, "delay_s": 180.0, "run_s": 10.0},
            "0 retries, 180 s each: 0 s + 1 runs of 10 s + redelivery 3600 s = 3610 s",
        ),
        (
            {"max_retries": 3, "backoff": 1.0, "backoff_max_s": 600.0},
            "3 retries, backoff 1 × 2^n, at most 600 s each: 7 s + redelivery 3600 s = 3607 s",
        ),
        (
            {"max_retries": 1, "delay_s": 0.00049, "redelivery_s": 30.0},
            "1 retries, 0 s each: 0 s + redelivery 30 s = 30 s",
        ),
    ],
)
def test_the_sum_is_said_in_words(given, words):
    fields = {"task_name": "pay", "delay_s": 0.0, "redelivery_s": 3600.0, **given}

    assert retry_window(RetryPolicy(**fields)).sum_text() == words
