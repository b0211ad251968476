"""A history as a table: one line a step, what the store holds after it."""

from __future__ import annotations

import re

from model.search import Found
from model.world import NOW_MS, Kept

_FENCE = re.compile(r"fence (\d{7,})")


def timeline(found: Found) -> str:
    """The shortest history that breaks a promise, as text."""
    rows = [("", "who", "what", "the store then")]
    for n, step in enumerate(found.history, 1):
        who = "ABCDEFG"[step.actor] if step.actor >= 0 else ""
        mark = "!" if step.fault else ""
        text = step.text
        if text.startswith("'s "):
            who, text = f"{who}'s", text[3:]
        kept = str(Kept(*step.world.kept)) if step.world.kept else "nothing"
        rows.append((f"{n}{mark}", who, _small_fences(text), _small_fences(kept)))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        + "  "
        + row[3]
        for row in rows
    ]
    if found.again_from:
        lines.append(f"… and so on from {found.again_from}")
    return "\n".join([*(line.rstrip() for line in lines), f"→ {found.broken}"])


def _small_fences(text: str) -> str:
    """The first fence of a history is 1, not the clock's microseconds."""
    return _FENCE.sub(lambda found: f"fence {int(found[1]) - NOW_MS * 1000 + 1}", text)


def summary(found: Found) -> str:
    """One line: what was searched and what was found."""
    what = f"{found.scenario.name}, {found.scenario.workers} workers"
    what += f", {found.scenario.faults} faults"
    size = f"{found.states:,} states, {found.steps:,} steps, depth {found.depth}"
    if found.broken:
        return f"{what}: broken after {found.states:,} states, {found.depth} steps"
    return f"{what}: {size}, {found.ends} ends; every promise holds in every state"
