"""Run times as a picture: a line of blocks for each task in a terminal, or an SVG file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from celery_idem.core.histogram import LAST_BUCKET, Histogram, bucket_of
from celery_idem.tuning.facts import TaskFacts, spoken_s

BLOCKS = " ▁▂▃▄▅▆▇█"
#: where the time axis has a mark, in seconds
MARKS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36000.0, 86400.0)
_WIDTH = 64


def lines(tasks: Sequence[TaskFacts], lease_s: float, width: int = _WIDTH) -> Iterator[str]:
    """Each task's distribution on one logarithmic axis of time. Below it ``^`` is the median and
    ``*`` the 99th percentile; ``|`` is the lease."""
    ran = [task for task in tasks if task.times.runs]
    if not ran:
        return
    axis = _Axis.over(ran, lease_s, width)
    margin = max(len(task.name) for task in ran)
    for task in ran:
        yield f"{task.name:<{margin}}  {_bars(task.times, axis)}"
        marks = [" "] * width
        for seconds, sign in (
            (lease_s, "|"),
            (task.times.quantile(0.99), "*"),
            (task.times.quantile(0.5), "^"),
        ):
            marks[axis.column(seconds)] = sign
        yield f"{'':<{margin}}  {''.join(marks).rstrip()}"
    yield f"{'':<{margin}}  {_labels(axis)}"
    yield f"{'':<{margin}}  ^ median   * 99 %   | lease {spoken_s(lease_s)}"


class _Axis:
    """Buckets to columns."""

    def __init__(self, first: int, last: int, width: int) -> None:
        self.first, self.last, self.width = first, max(last, first + 1), width

    @classmethod
    def over(cls, tasks: Sequence[TaskFacts], lease_s: float, width: int) -> _Axis:
        """From the mark below the shortest run to the one above the longest, or the lease."""
        buckets = [bucket for task in tasks for bucket in task.times.counts] + [bucket_of(lease_s)]
        marks = [bucket_of(seconds) for seconds in MARKS]
        first = max((mark for mark in marks if mark <= min(buckets)), default=0)
        last = min((mark for mark in marks if mark >= max(buckets)), default=LAST_BUCKET)
        return cls(first, last, width)

    def place(self, bucket: float) -> float:
        """0 at the left, 1 at the right."""
        return min(1.0, max(0.0, (bucket - self.first) / (self.last - self.first)))

    def column(self, seconds: float) -> int:
        return round(self.place(bucket_of(seconds)) * (self.width - 1))


def _bars(times: Histogram, axis: _Axis) -> str:
    heights = [0.0] * axis.width
    for bucket, runs in times.counts.items():
        heights[round(axis.place(bucket) * (axis.width - 1))] += runs
    highest = max(heights)
    # by the root, so that the few long runs can be seen beside the many short ones
    steps = [math.ceil(math.sqrt(height / highest) * (len(BLOCKS) - 1)) for height in heights]
    return "".join(BLOCKS[step] for step in steps).rstrip()


def _labels(axis: _Axis) -> str:
    text = [" "] * (axis.width + 8)
    free_from = 0
    for seconds in _marks(axis):
        column, label = axis.column(seconds), _label(seconds).replace(" ", "")
        if column >= free_from:
            text[column : column + len(label)] = label
            free_from = column + len(label) + 1
    return "".join(text).rstrip()


def _label(seconds: float) -> str:
    return spoken_s(seconds).replace(".0", "")


def _marks(axis: _Axis) -> list[float]:
    return [seconds for seconds in MARKS if axis.first <= bucket_of(seconds) <= axis.last]


# --- SVG ---------------------------------------------------------------------------------

_ROW, _HEAD, _LEFT, _PLOT = 78, 34, 20, 760


def svg(tasks: Sequence[TaskFacts], lease_s: float) -> str:
    """The same as a drawing, with p50, p99 and the longest run of each task."""
    ran = [task for task in tasks if task.times.runs]
    axis = _Axis.over(ran, lease_s, 0) if ran else _Axis(0, LAST_BUCKET, 0)
    height = _HEAD + _ROW * len(ran) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_PLOT + 2 * _LEFT}" height="{height}" '
        f'viewBox="0 0 {_PLOT + 2 * _LEFT} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="#fff"/><text x="{_LEFT}" y="20">Run times by task '
        f"(logarithmic; height: root of the number of runs)</text>",
        *_grid(axis, height),
        *(part for n, task in enumerate(ran) for part in _row(task, axis, _HEAD + n * _ROW)),
        _vertical(axis, lease_s, _HEAD, height - 34, "#b42318", "6 4"),
        f'<text x="{_x(axis, lease_s) + 4:.1f}" y="{_HEAD + 2}" fill="#b42318">lease '
        f"{spoken_s(lease_s)}</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _row(task: TaskFacts, axis: _Axis, top: int) -> Iterator[str]:
    times, bottom = task.times, top + _ROW - 14
    highest = max(times.counts.values())
    bar_width = max(1.0, _PLOT / (axis.last - axis.first) - 0.5)
    for bucket, runs in sorted(times.counts.items()):
        tall = math.sqrt(runs / highest) * (_ROW - 36)
        x = _LEFT + axis.place(bucket) * _PLOT - bar_width / 2
        yield (
            f'<rect x="{x:.1f}" y="{bottom - tall:.1f}" width="{bar_width:.1f}" '
            f'height="{tall:.1f}" fill="#9ec5e8"/>'
        )
    for part, colour in ((0.5, "#1a7f37"), (0.99, "#9a6700")):
        yield _vertical(axis, times.quantile(part), bottom - (_ROW - 36), bottom, colour, "")
    said = (
        f"{task.name}: {times.runs:,} runs, median {spoken_s(times.quantile(0.5))}, "
        f"99 % {spoken_s(times.quantile(0.99))}, longest {spoken_s(times.longest_s)}"
    )
    yield f'<text x="{_LEFT}" y="{top + 16}">{escape(said)}</text>'


def _grid(axis: _Axis, height: int) -> Iterator[str]:
    for seconds in _marks(axis):
        yield _vertical(axis, seconds, _HEAD, height - 34, "#d8dee4", "")
        x = _x(axis, seconds)
        yield (
            f'<text x="{x:.1f}" y="{height - 18}" text-anchor="middle" fill="#5b6770">'
            f"{_label(seconds)}</text>"
        )


def _vertical(
    axis: _Axis, seconds: float, top: float, bottom: float, colour: str, dashes: str
) -> str:
    x = _x(axis, seconds)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" '
        f'stroke="{colour}" stroke-width="1.5"{dashed}/>'
    )


def _x(axis: _Axis, seconds: float) -> float:
    return _LEFT + axis.place(bucket_of(seconds)) * _PLOT
