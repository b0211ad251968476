"""Strict order over several lanes or queues: whatever is below a busy one starves.

The next lane is looked at only while those before it are empty (S-P2). As long as the first one
is refilled, nothing below it runs: not slowly, but never (C28).

**Mend it:** `lane_order: "weighted"` (the default): at 10:5:1 the low lane waits 16 turns at
most. Or `"deadline"`. If the lane above is nearly always empty and you want this: silence the
check with `--ignore IDEM031`.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.paste import change
from celery_idem.doctor.project import Project
from celery_idem.doctor.routes import declared_queues

_STRICT_STRATEGIES = ("priority", "sorted")


def look(project: Project) -> Iterator[Finding]:
    lanes = list(project.settings.lanes)
    if project.settings.lane_order == "strict" and len(lanes) > 1:
        yield Finding(
            f"while {lanes[0]!r} has work, {_named(lanes[1:])} never run",
            remedy=change("idem", lane_order="weighted"),
            setting='idem["lane_order"]',
            value="strict",
        )
    strategy = project.transport_options.get("queue_order_strategy")
    queues = declared_queues(project.app)
    if not lanes and strategy in _STRICT_STRATEGIES and len(queues) > 1:
        ranked = sorted(queues) if strategy == "sorted" else queues
        yield Finding(
            f"while {ranked[0]!r} has work, {_named(ranked[1:])} never run",
            remedy=change("idem", lanes=dict.fromkeys(queues, 1)) + "  # and weights",
            setting='broker_transport_options["queue_order_strategy"]',
            value=str(strategy),
        )


def _named(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)


CHECK = Check("IDEM031", "strict order starves what is below", Severity.WARNING, look)
