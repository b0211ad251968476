"""``dlq floods``: the queues that a flood of dead letters has paused, and an end to it."""

from __future__ import annotations

from typing import Any

import click

from celery_idem.cli import dlq_shown as shown
from celery_idem.cli.dlq_filter import app_of
from celery_idem.cli.dlq_table import Table, show
from celery_idem.cli.told import told

COLUMNS = ("worker", "queue", "lane", "flood of", "seconds left")


@click.command(short_help="Queues that are paused by a flood of dead letters.")
@click.option("--end", "queue", metavar="QUEUE", default=None,
              help="Serve this queue again now; 'all': every paused one.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.05), default=1.0,
              show_default=True, help="Seconds to wait for the workers' answers.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
@told
def floods(ctx: click.Context, queue: str | None, timeout_s: float, as_json: bool) -> None:
    """Queues that are paused because a task floods the dead letters (flood_per_minute)."""
    app = app_of(ctx)
    if queue is not None:
        _end(ctx, app, "" if queue == "all" else queue, timeout_s, as_json)
        return
    answers = app.control.inspect(timeout=timeout_s)._request("floods") or {}
    rows = [{"worker": name, **it} for name, found in sorted(answers.items()) for it in found]
    if as_json:
        shown.dump(rows)
        return
    if not rows:
        answered = shown.many(len(answers), "worker")
        click.echo(f"no queue is paused by a flood; {answered} answered")
        return
    words = ("worker", "queue", "lane", "kind", "left_s")
    show(Table(COLUMNS, [[str(row[it]) for it in words] for row in rows]))


def _end(ctx: click.Context, app: Any, queue: str, timeout_s: float, as_json: bool) -> None:
    replies = app.control.broadcast(
        "flood_end", arguments={"queue": queue}, reply=True, timeout=timeout_s
    )
    ended = {
        name: answer.get("ended", [])
        for reply in replies or ()
        for name, answer in reply.items()
        if isinstance(answer, dict)
    }
    if as_json:
        shown.dump(ended)
    else:
        for name, queues in sorted(ended.items()):
            click.echo(f"{name}: {', '.join(queues) or 'nothing was paused'}")
    if not any(ended.values()):
        if not as_json:
            click.echo("no worker that answered had it paused by a flood", err=True)
        ctx.exit(1)
