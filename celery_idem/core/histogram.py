"""Run times, counted in buckets whose edges grow by a tenth: small, mergeable, and as exact for
milliseconds as for hours.

As the DDSketch of Masson, Rim and Lee (VLDB 2019), whose error is relative: a quantile is told by
the middle of its bucket, at most 5 % away from the true one. Two histograms are merged by adding
their counts, so those of any workers, days and lanes may be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

#: A bucket's upper edge is this many times its lower one.
GROWTH = 1.1
#: The shortest time that is told apart from none, in seconds.
SHORTEST_S = 0.001
#: The longest, in seconds: a month. What is longer is counted as that.
LONGEST_S = 30 * 86400.0

_LOG_GROWTH = math.log(GROWTH)
LAST_BUCKET = math.ceil(math.log(LONGEST_S / SHORTEST_S) / _LOG_GROWTH)

#: (task name, lane or queue, bucket) → runs: what workers hand to a store
RunCounts = Mapping[tuple[str, str, int], int]


def bucket_of(seconds: float) -> int:
    """The bucket that a time is counted in: 0 for up to a millisecond.

    >>> bucket_of(0.0), bucket_of(0.001), bucket_of(0.0011), bucket_of(1.0)
    (0, 0, 1, 73)
    """
    if seconds <= SHORTEST_S:
        return 0
    # the edges themselves are not exact numbers: what is within a billionth of one belongs below
    exact = math.log(seconds / SHORTEST_S) / _LOG_GROWTH
    return min(LAST_BUCKET, math.ceil(exact - 1e-9))


def upper_s(bucket: int) -> float:
    """The longest time that the bucket counts, in seconds."""
    return float(SHORTEST_S * GROWTH**bucket)


def middle_s(bucket: int) -> float:
    """What stands for all times of the bucket, in seconds; none of them is 5 % away."""
    return upper_s(bucket) if bucket == 0 else 2 * upper_s(bucket) / (1 + GROWTH)


def today(clock: Callable[[], float] = time.time) -> int:
    """The day that run times are kept under: days since 1970, UTC."""
    return int(clock() // 86400)


def days_back(days: int) -> range:
    """Today and the days before it, so many in all."""
    return range(today() - days + 1, today() + 1)


@dataclass(frozen=True, slots=True)
class Peak:
    """A hill of the distribution: times that lie together."""

    at_s: float  #: where it is highest
    share: float  #: of all runs


@dataclass(frozen=True, slots=True)
class Histogram:
    """Bucket → runs."""

    counts: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, times_s: Iterable[float]) -> Histogram:
        """A histogram of these times.

        >>> Histogram.of([1.0, 1.0, 2.0]).runs
        3
        """
        counts: dict[int, int] = {}
        for seconds in times_s:
            bucket = bucket_of(seconds)
            counts[bucket] = counts.get(bucket, 0) + 1
        return cls(counts)

    def __add__(self, other: Histogram) -> Histogram:
        """Both together."""
        counts = dict(self.counts)
        for bucket, runs in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + runs
        return Histogram(counts)

    @property
    def runs(self) -> int:
        """How many there were."""
        return sum(self.counts.values())

    @property
    def mean_s(self) -> float:
        """The average run time in seconds; 0 where there was no run."""
        return self.total_s / self.runs if self.runs else 0.0

    @property
    def total_s(self) -> float:
        """All run times together, in seconds."""
        return sum(middle_s(bucket) * runs for bucket, runs in self.counts.items())

    @property
    def longest_s(self) -> float:
        """No run was longer, in seconds: the upper edge of the last bucket; 0 without runs."""
        return upper_s(max(self.counts)) if self.counts else 0.0

    def quantile(self, part: float) -> float:
        """Seconds within which this part of the runs ended; 0 where there was no run.

        >>> Histogram.of(n / 100 for n in range(1, 101)).quantile(0.99) > 0.95
        True
        """
        return self._at_rank(math.ceil(part * self.runs))

    def quantile_at_most(self, part: float) -> float | None:
        """With 95 % confidence the quantile is no longer than this many seconds, whatever the
        distribution: the order statistic that lies above it in 19 of 20 samples of this size.
        ``None``: so few runs bound it by nothing (the 99th percentile needs 299).

        >>> Histogram.of([1.0] * 298).quantile_at_most(0.99) is None
        True
        """
        runs = self.runs
        if runs == 0 or part**runs > 0.05:
            return None
        spread = 1.645 * math.sqrt(runs * part * (1 - part))
        rank = min(runs, math.ceil(runs * part + spread) + 1)
        return self._upper_at_rank(rank)

    def share_above(self, seconds: float) -> float:
        """The part of the runs that took longer than this."""
        if not self.runs:
            return 0.0
        edge = bucket_of(seconds)
        return sum(runs for bucket, runs in self.counts.items() if bucket > edge) / self.runs

    def peaks(self) -> tuple[Peak, ...]:
        """Hills that a valley at most half as high as the lower of the two parts, each with a tenth
        of the runs. Two of them are two kinds of work under one name. None below 100 runs."""
        if self.runs < _FEWEST_FOR_PEAKS:
            return ()
        heights = self._smoothed()
        hills = _hills(heights)
        return tuple(
            Peak(middle_s(top), share)
            for top, low, high in hills
            if (share := self._share_between(low, high)) >= _LEAST_PEAK
        )

    def _at_rank(self, rank: int) -> float:
        return middle_s(self._bucket_at(rank)) if self.counts else 0.0

    def _upper_at_rank(self, rank: int) -> float:
        return upper_s(self._bucket_at(rank))

    def _bucket_at(self, rank: int) -> int:
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= rank:
                return bucket
        return max(self.counts)

    def _share_between(self, low: int, high: int) -> float:
        inside = sum(runs for bucket, runs in self.counts.items() if low <= bucket < high)
        return inside / self.runs

    def _smoothed(self) -> list[float]:
        """Heights of the buckets, each with a part of its neighbours, from 0 on."""
        heights = [0.0] * (max(self.counts) + _REACH + 1)
        for bucket, runs in self.counts.items():
            for away in range(-_REACH, _REACH + 1):
                if 0 <= bucket + away < len(heights):
                    heights[bucket + away] += runs * (1 - abs(away) / (_REACH + 1))
        return heights


def merged(
    counts: Iterable[tuple[tuple[str, str, int], int]],
) -> dict[tuple[str, str], Histogram]:
    """Counts of any days and workers as one histogram per task and lane."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for (task, lane, bucket), runs in counts:
        of_task = found.setdefault((task, lane), {})
        of_task[bucket] = of_task.get(bucket, 0) + runs
    return {kind: Histogram(of_task) for kind, of_task in found.items()}


_FEWEST_FOR_PEAKS = 100
_LEAST_PEAK = 0.1
_REACH = 5


def _hills(heights: list[float]) -> list[tuple[int, int, int]]:
    """(top, begin, end) of each hill. Neighbours between which there is no real valley are one."""
    hills: list[tuple[int, int, int]] = []
    for top, begin, end in _runs_up_and_down(heights):
        if hills:
            last_top, last_begin, _ = hills[-1]
            valley = min(heights[last_top : top + 1])
            if valley > 0.5 * min(heights[last_top], heights[top]):
                higher = top if heights[top] > heights[last_top] else last_top
                hills[-1] = (higher, last_begin, end)
                continue
        hills.append((top, begin, end))
    return hills


def _runs_up_and_down(heights: list[float]) -> list[tuple[int, int, int]]:
    """Every local maximum with the stretch from the valley before it to the one after it."""
    found, begin, at = [], 0, 0
    while at < len(heights):
        top = at
        while top + 1 < len(heights) and heights[top + 1] >= heights[top]:
            top += 1
        end = top
        while end + 1 < len(heights) and heights[end + 1] < heights[end]:
            end += 1
        if heights[top] > 0:
            found.append((top, begin, end + 1))
        begin = at = end + 1
    return found
