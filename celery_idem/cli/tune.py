"""``celery idem tune``: settings that fit the measured run times, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TextIO

import click

from celery_idem.cli.told import told
from celery_idem.stores.base import RUN_TIMES_DAYS
from celery_idem.tuning import picture
from celery_idem.tuning.block import block
from celery_idem.tuning.facts import Advice, Proposal, TaskFacts, how_sure, spoken_s
from celery_idem.tuning.gather import gather
from celery_idem.tuning.propose import advise

DEFAULT_DAYS = 7


@click.command(name="tune", short_help="Propose lease, limits, retention, prefetch, weights.")
@click.option("--days", type=click.IntRange(1, RUN_TIMES_DAYS), default=DEFAULT_DAYS,
              show_default=True, help="Days to go by, today included.")  # fmt: skip
@click.option("--task", "tasks", multiple=True, metavar="PATTERN",
              help="Limits for these tasks only, for example 'shop.*'. Several times.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--block", "only_block", is_flag=True, help="Print only the lines to paste.")
@click.option("--django", is_flag=True, help="Lines to paste for Django's settings.")
@click.option("--svg", type=click.File("w", encoding="utf-8"), metavar="FILE",
              help="Write the picture into this file, too.")  # fmt: skip
@click.pass_context
@told
def tune(
    ctx: click.Context,
    days: int,
    tasks: tuple[str, ...],
    as_json: bool,
    only_block: bool,
    django: bool,
    svg: TextIO | None,
) -> None:
    """Propose lease, visibility timeout, time limits, retention, prefetch, reserve and weights.

    From the run times that workers have recorded, with the arithmetic, and how sure it is.
    Nothing is changed.
    """
    app = getattr(ctx.obj, "app", None)
    if app is None:
        raise click.ClickException("which app? celery -A proj idem tune")
    advice = advise(gather(app, days, tasks))
    if svg is not None:
        svg.write(picture.svg(advice.facts.tasks, advice.facts.lease_s))
    if as_json:
        click.echo(json.dumps(as_data(advice), indent=2))
        return
    paste = block(
        advice.proposals,
        advice.facts.lanes,
        django=django,
        annotations_merge=advice.facts.annotations_merge,
    )
    if only_block:
        click.echo(paste)
        return
    click.echo("\n".join(page(advice, paste)))


def as_data(advice: Advice) -> dict[str, Any]:
    """For programs: seconds, and nothing rounded."""
    return {
        "days": advice.facts.days,
        "tasks": [_task_data(task) for task in advice.facts.tasks],
        "lanes": [
            {"lane": lane.name, "runs": lane.times.runs, "seconds": lane.times.total_s}
            for lane in advice.facts.lanes
        ],
        "proposals": [asdict(p) | {"changes": p.changes} for p in advice.proposals],
        "warnings": list(advice.warnings),
    }


def page(advice: Advice, paste: str) -> list[str]:
    """The whole answer as text."""
    facts = advice.facts
    if not any(task.times.runs for task in facts.tasks):
        return [
            f"no run times in {facts.days} days: workers with an idempotent task record them by "
            "themselves; let some run, and ask again"
        ]
    lines = [f"Run times of {facts.days} days", "", *_table(_task_rows(facts.tasks)), ""]
    lines += [*picture.lines(facts.tasks, facts.lease_s), ""]
    lines += _table(_proposal_rows(advice.proposals))
    lines += ["", *_reasons(advice.proposals)]
    if advice.warnings:
        lines += ["", "Look at this", *(f"  ! {warning}" for warning in advice.warnings)]
    lines += ["", "To paste" if paste else "Nothing to change: what is set fits."]
    return [*lines, "", *paste.splitlines()] if paste else lines


def _task_data(task: TaskFacts) -> dict[str, Any]:
    times = task.times
    return {
        "task": task.name,
        "runs": times.runs,
        "mean_s": times.mean_s,
        "p50_s": times.quantile(0.5),
        "p99_s": times.quantile(0.99),
        "p99_at_most_s": times.quantile_at_most(0.99),
        "longest_s": times.longest_s,
        "peaks": [asdict(peak) for peak in times.peaks()],
        "sure": how_sure(times),
    }


def _task_rows(tasks: tuple[TaskFacts, ...]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("task", "runs", "p50", "p99", "longest", "limit", "how sure")]
    for task in tasks:
        times, limit_s = task.times, task.time_limit_s
        rows.append(
            (
                task.name,
                f"{times.runs:,}",
                spoken_s(times.quantile(0.5)),
                spoken_s(times.quantile(0.99)),
                spoken_s(times.longest_s),
                "–" if limit_s is None else spoken_s(limit_s),
                how_sure(times),
            )
        )
    return rows


def _proposal_rows(proposals: tuple[Proposal, ...]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "setting", "now", "proposed", "how sure")]
    for n, p in enumerate(proposals, 1):
        proposed = "keep" if not p.changes else _value(p.proposed)
        rows.append((f"{n}", f"{p.place}: {p.setting}", _value(p.now), proposed, p.sure))
    return rows


def _reasons(proposals: tuple[Proposal, ...]) -> list[str]:
    return ["Why", *(f"  {n}. {p.reason}" for n, p in enumerate(proposals, 1))]


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
