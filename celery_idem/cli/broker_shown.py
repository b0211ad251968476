"""How ``celery idem broker`` prints what it found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from celery_idem.cli.records import table
from celery_idem.transport.moving import Moved
from celery_idem.transport.status import LaneStatus, SessionStatus, StockStatus

_COLUMNS = (
    "queue", "ready", "held", "delayed", "set aside", "oldest", "longest held", "next due",
)  # fmt: skip


def dump(value: Any) -> None:
    """One JSON document."""
    click.echo(json.dumps(value, indent=2))


def status(
    queues: Sequence[LaneStatus],
    workers: Sequence[SessionStatus],
    stock: StockStatus,
    warnings: Sequence[str],
) -> None:
    """Everything, for a person."""
    click.echo(table(_COLUMNS, [_row(lane) for lane in queues]) if queues else "no queues")
    for worker in workers:
        left = f"lease over in {worker.lease_left_s:.0f} s"
        if worker.lease_left_s < 0:
            left = f"lease over since {-worker.lease_left_s:.0f} s"
        click.echo(f"worker {worker.session}: {left}, {', '.join(worker.queues)}")
    if not workers:
        click.echo("no workers")
    for queue, waiting in stock.waiting.items():
        click.echo(f"stock list {queue}: {waiting} waiting")
    if stock.unacked:
        click.echo(f"stock workers hold {stock.unacked} messages")
    for sentence in warnings:
        click.echo(f"warning: {sentence}", err=True)


def _row(lane: LaneStatus) -> tuple[str, ...]:
    counts = (lane.ready, lane.held, lane.delayed, lane.set_aside)
    ages = (lane.oldest_ready_s, lane.longest_held_s, lane.next_due_s)
    return (lane.queue, *map(str, counts), *("-" if it is None else f"{it:.1f} s" for it in ages))


def moved(rows: Sequence[Moved], where: str, dry_run: bool, as_json: bool) -> None:
    """What was moved, or would be."""
    total = sum(row.total for row in rows)
    if as_json:
        dump({"dry_run": dry_run, "moved": total, "queues": [asdict(row) for row in rows]})
        return
    columns = ("queue", "waiting", "unacked")
    lines = [(row.queue, str(row.waiting), str(row.unacked)) for row in rows if row.total]
    if lines:
        click.echo(table(columns, lines))
    click.echo(f"{total} messages {'would be' if dry_run else 'were'} moved {where}")
