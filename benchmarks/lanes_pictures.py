"""The pictures of ``docs/lanes.md``: shares over time, and waits under a flood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lanes_run import LANES, WEIGHTS, Start

COLOURS = {"critical": "#b3334a", "normal": "#e0a458", "low": "#7a9cc6"}
#: Starts over which a share is averaged in the picture.
WINDOW = 96


def draw_shares(runs: Mapping[str, Sequence[Start]], path: Path) -> None:
    """One panel per run: who is served, stacked, while three equal backlogs are worked off."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(
        (len(runs) + 2) // 3, 3, figsize=(12, 2.6 * ((len(runs) + 2) // 3)), sharey=True
    )
    flat = list(axes.flat)
    for axis, (name, starts) in zip(flat, runs.items(), strict=False):
        order = [start.lane for start in starts]
        at = list(range(0, max(len(order) - WINDOW, 1), 24))
        rows = [[order[i : i + WINDOW].count(lane) / WINDOW for i in at] for lane in LANES]
        axis.stackplot(at, rows, labels=LANES, colors=[COLOURS[lane] for lane in LANES])
        whole = sum(WEIGHTS.values())
        for level in (WEIGHTS["critical"] / whole, 1 - WEIGHTS["low"] / whole):
            axis.axhline(level, color="black", linewidth=0.6, linestyle=":")
        axis.set_title(name, fontsize=10)
        axis.set_xlim(0, at[-1])
        axis.set_ylim(0, 1)
    for axis in flat[len(runs) :]:
        axis.set_visible(False)
    flat[0].legend(loc="lower left", fontsize=8)
    figure.supxlabel("jobs started", fontsize=9)
    figure.supylabel("share of the starts (dotted: 10:5:1)", fontsize=9)
    _save(figure, path)


def draw_flood(waits: Mapping[str, Sequence[float]], path: Path) -> None:
    """Waits of critical jobs: each set-up's distribution on one logarithmic axis."""
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(9, 0.42 * len(waits) + 1))
    names = list(waits)[::-1]
    for row, name in enumerate(names):
        values = sorted(max(value, 0.5) for value in waits[name])
        colour = COLOURS["critical"] if "lanes" in name else "#888888"
        p50, p99 = (values[min(len(values) - 1, int(len(values) * p))] for p in (0.5, 0.99))
        axis.plot([values[0], values[-1]], [row, row], color=colour, linewidth=1, alpha=0.4)
        axis.plot([p50, p99], [row, row], color=colour, linewidth=5, solid_capstyle="butt")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_xscale("log")
    axis.set_xlabel("wait of a critical job in ms; thick: from p50 to p99")
    axis.grid(axis="x", which="both", linewidth=0.3)
    _save(figure, path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    # no date inside: the same run gives the same file
    figure.savefig(path, dpi=100, metadata={"Software": None})
