"""What a worker served in the last minute, lane by lane, in sixty small buckets."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

WINDOW_S = 60


@dataclass(slots=True)
class _Second:
    second: int
    started: Counter[str] = field(default_factory=Counter)
    run_time_s: Counter[str] = field(default_factory=Counter)


class Tally:
    """Counts starts, and run times of what ended. Costs the same whatever the throughput."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: deque[_Second] = deque()

    def started(self, lane: str) -> None:
        """A job of the lane was handed to the pool."""
        self._now().started[lane] += 1

    def ended(self, lane: str, run_time_s: float) -> None:
        """A job of the lane has ended after this time."""
        # a Counter holds any number; its type says int
        self._now().run_time_s[lane] += run_time_s  # type: ignore[assignment]

    def last_minute(self) -> tuple[Counter[str], Counter[str]]:
        """Starts, and seconds of run time, by lane. A lane without any counts 0."""
        self._now()
        started: Counter[str] = Counter()
        run_time_s: Counter[str] = Counter()
        for bucket in self._seconds:
            started.update(bucket.started)
            run_time_s.update(bucket.run_time_s)
        return started, run_time_s

    def _now(self) -> _Second:
        second = int(self._clock())
        if not self._seconds or self._seconds[-1].second != second:
            self._seconds.append(_Second(second))
            while self._seconds[0].second <= second - WINDOW_S:
                self._seconds.popleft()
        return self._seconds[-1]
