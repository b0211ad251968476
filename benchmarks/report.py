"""Tables, as text for a terminal and as Markdown for ``docs/benchmarks.md``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(slots=True)
class Section:
    """A heading, a table, and what must be known to read it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_text(self) -> str:
        widths = [max(len(row[i]) for row in [self.columns, *self.rows])
                  for i in range(len(self.columns))]  # fmt: skip
        lines = [self.title, ""]
        for row in [self.columns, *self.rows]:
            cells = [cell.ljust(w) if i == 0 else cell.rjust(w)
                     for i, (cell, w) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def as_markdown(self) -> str:
        rule = ["---", *("---:" for _ in self.columns[1:])]
        rows = ["| " + " | ".join(row) + " |" for row in [self.columns, rule, *self.rows]]
        notes = [line for note in self.notes for line in ("", note)]
        return "\n".join([f"## {self.title}", "", *rows, *notes])


def middle(values: Sequence[float]) -> float:
    """The median."""
    return median(values)


def with_range(values: Sequence[float], digits: int = 2) -> str:
    """``0.95 (0.91–0.99)``: the median and the extremes."""
    low, high = min(values), max(values)
    return f"{middle(values):.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def say(text: str) -> None:
    """What is measured now, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
