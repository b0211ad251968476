"""The arithmetic of S-I3: how long after the first try a copy of a job can still turn up.

A done record must outlive that window at least twofold, or a late duplicate runs again. Delays are
taken at their longest: full jitter picks a random delay up to the computed one (Celery 5.7,
``celery.utils.time.get_exponential_backoff_interval``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from celery_idem.core.errors import ConfigError

#: A done record is kept at least this long, in seconds.
LEAST_RETENTION_S = 24 * 3600.0
#: Kept when the retries never end and nothing else is said, in seconds.
ENDLESS_RETENTION_S = 30 * 24 * 3600.0
#: The record outlives the retry window this many times.
SAFETY_FACTOR = 2


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A task's own retry options. Seconds."""

    task_name: str
    max_retries: int | None
    delay_s: float  #: between tries without backoff (``default_retry_delay``)
    backoff: float = 0.0  #: factor of the exponential backoff; 0: none
    backoff_max_s: float = 600.0
    redelivery_s: float = 3600.0  #: the broker's visibility timeout
    run_s: float = 0.0  #: hard time limit of one run, 0 when there is none

    @property
    def pause_s(self) -> float:
        """The longest pause between two tries: with a backoff the one before the last of them."""
        if not self.backoff:
            return self.delay_s
        if self.max_retries is None:
            return self.backoff_max_s
        if self.max_retries < 1:
            return 0.0
        return _backoff_pause(self.backoff, self.backoff_max_s, self.max_retries - 1)


@dataclass(frozen=True, slots=True)
class RetryWindow:
    """The window and how it comes about."""

    policy: RetryPolicy
    delays_s: float
    runs_s: float
    total_s: float  #: infinite when the retries never end

    @property
    def endless(self) -> bool:
        return self.total_s == float("inf")

    def sum_text(self) -> str:
        """The sum in words, for errors and the doctor."""
        policy = self.policy
        if self.endless:
            return "max_retries=None never ends"
        kind = (
            f"backoff {_plain(policy.backoff)} × 2^n, at most {_plain(policy.backoff_max_s)} s each"
            if policy.backoff
            else f"{_plain(policy.delay_s)} s each"
        )
        parts = [f"{policy.max_retries} retries, {kind}: {_plain(self.delays_s)} s"]
        if self.runs_s:
            parts.append(f"{(policy.max_retries or 0) + 1} runs of {_plain(policy.run_s)} s")
        parts.append(f"redelivery {_plain(policy.redelivery_s)} s")
        return " + ".join(parts) + f" = {_plain(self.total_s)} s"


def retry_window(policy: RetryPolicy) -> RetryWindow:
    """The longest time from the first delivery to the last copy of a job."""
    if policy.max_retries is None:
        return RetryWindow(policy, float("inf"), 0.0, float("inf"))
    if policy.backoff:
        delays_s = _backoff_sum(policy.backoff, policy.backoff_max_s, policy.max_retries)
    else:
        delays_s = policy.delay_s * policy.max_retries
    runs_s = policy.run_s * (policy.max_retries + 1)
    return RetryWindow(policy, delays_s, runs_s, delays_s + runs_s + policy.redelivery_s)


def retention(window: RetryWindow, explicit_s: float | None) -> float:
    """How long a done record is kept, in seconds: the explicit value, or the computed one.

    Raises :class:`ConfigError`, with the sum, for an explicit one below twice the window.
    """
    if explicit_s is None:
        if window.endless:
            return ENDLESS_RETENTION_S
        return max(LEAST_RETENTION_S, SAFETY_FACTOR * window.total_s)
    least_s = least_retention(window)
    if explicit_s >= least_s:
        return explicit_s
    policy = window.policy
    if window.endless:
        raise ConfigError(
            f"retention {_plain(explicit_s)} s is shorter than twice the longest pause between "
            f"two retries of {policy.task_name} ({_plain(policy.pause_s)} s, redelivery "
            f"{_plain(policy.redelivery_s)} s; its retries never end); set retention_s >= "
            f"{math.ceil(least_s)}, or set max_retries"
        )
    raise ConfigError(
        f"retention {_plain(explicit_s)} s is shorter than twice the retry window of "
        f"{policy.task_name} (2 × {spoken(window.total_s)}: {window.sum_text()}); set "
        f"retention_s >= {math.ceil(least_s)}, or lower max_retries"
    )


def least_retention(window: RetryWindow) -> float:
    """The shortest retention that is allowed, in seconds: twice the window.

    Where retries never end, every one renews the record, so what counts is the longest pause
    between two of them.
    """
    policy = window.policy
    if window.endless:
        return SAFETY_FACTOR * (policy.pause_s + policy.run_s + policy.redelivery_s)
    return SAFETY_FACTOR * window.total_s


def spoken(seconds: float) -> str:
    """``18720`` as ``5 h 12 min``."""
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (left, "s")]
    said = [f"{n} {unit}" for n, unit in parts if n]
    return " ".join(said[:2]) or "0 s"


def _plain(number: float) -> str:
    """Without an exponent and without noise behind the point: 1234567, 0.25."""
    return f"{number:.3f}".rstrip("0").rstrip(".")


def _backoff_pause(factor: float, longest_s: float, n: int) -> float:
    """The pause after ``n`` retries. Past a thousand doublings there is no float for it."""
    return min(longest_s, factor * 2.0 ** min(n, 1000))


def _backoff_sum(factor: float, longest_s: float, retries: int) -> float:
    total, n = 0.0, 0
    while n < retries:
        delay = _backoff_pause(factor, longest_s, n)
        if delay >= longest_s:
            return total + longest_s * (retries - n)
        total += delay
        n += 1
    return total
