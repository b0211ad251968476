"""From this package's signals to counts, in whatever process of the worker they are sent."""

from __future__ import annotations

import os
from typing import Any

from celery_idem import signals
from celery_idem.metrics import names
from celery_idem.metrics.counts import Counts


def listen(counts: Counts, *, has_children: bool) -> None:
    """Count what happens from now on. ``has_children``: bodies run in processes of their own, and
    the main one is not to count again what they report themselves."""
    connect: dict[Any, Any] = {
        signals.claimed: _by_task(counts, names.CLAIMS),
        signals.completed: _by_task(counts, names.COMPLETIONS),
        signals.duplicate: _by_task(counts, names.DUPLICATES),
        signals.crashed: _by_task(counts, names.CRASHES),
        signals.released: _by_task(counts, names.RELEASES, "ending"),
        signals.conflict: _by_task(counts, names.CONFLICTS, "action"),
    }
    for signal, receiver in connect.items():
        signal.connect(receiver, weak=False, dispatch_uid="celery_idem.metrics")

    def on_lease_lost(sender: Any = None, **_: Any) -> None:
        # the child that runs the body learns of it, too, and at the latest when it ends
        if not has_children or os.getpid() != counts.owner:
            counts.add(names.LEASE_LOSSES.name, _name_of(sender))

    def on_letter(letter: Any, **_: Any) -> None:
        counts.add(names.LETTERS.name, letter.task, letter.reason.value, letter.lane)

    def on_flood(task: str = "", **_: Any) -> None:
        counts.add(names.FLOODS.name, task)

    others: dict[Any, Any] = {
        signals.lease_lost: on_lease_lost,
        signals.dead_lettered: on_letter,
        signals.flood: on_flood,
    }
    for signal, receiver in others.items():
        signal.connect(receiver, weak=False, dispatch_uid="celery_idem.metrics")


def _by_task(counts: Counts, metric: names.Metric, label: str = "") -> Any:
    def receiver(sender: Any = None, **given: Any) -> None:
        values = [_text(given.get(label))] if label else []
        counts.add(metric.name, _name_of(sender), *values)

    return receiver


def _name_of(sender: Any) -> str:
    """Of the task; empty for plain code under ``idempotent``."""
    return str(getattr(sender, "name", "") or "")


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))
