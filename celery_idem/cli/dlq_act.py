"""``dlq replay, delete, purge``: what changes something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from celery_idem.cli import dlq_shown as shown
from celery_idem.cli.dlq_filter import app_of, expect_some, filtered
from celery_idem.cli.told import told
from celery_idem.deadletters import replay as replaying
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Letter
from celery_idem.deadletters.replay import Fate, How, Report

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_yes = click.option("--yes", is_flag=True, help="Don't ask.")
_all = click.option("--all", "everything", is_flag=True, help="All letters, without a filter.")

_TEXTS = {
    Fate.RUN: "sent",
    Fate.DONE: "sent; done meanwhile, nothing runs",
    Fate.CONFLICT: "kept: its key is being worked on",
    Fate.REVOKED: "kept: it was revoked",
    Fate.NO_TASK: "kept: no such task in this app",
    Fate.NOT_REPLAYABLE: "kept: it can't be sent again",
    Fate.CHORD_OVER: "kept: its chord has failed already (--despite-chord sends it)",
    Fate.TAKEN: "left: another replay has it, or it is gone",
    Fate.FAILED: "kept: the broker did not take it",
}
#: What a replay is not to blame for: with nothing else kept, its exit code is 0.
_FINE = (Fate.RUN, Fate.DONE, Fate.TAKEN)


@click.command(short_help="Send letters again, from the failed step on.")
@filtered
@_all
@click.option("--dry-run", is_flag=True, help="Say what would happen, and send nothing.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=None,
              help="At most so many a second.")  # fmt: skip
@click.option("--canary", type=click.IntRange(min=0), default=0,
              help="Send so many first, and the rest if they live.")  # fmt: skip
@click.option("--max-failures", type=click.IntRange(min=0), default=0,
              help="So many of the canary may die.")  # fmt: skip
@click.option("--canary-wait", type=click.FloatRange(min=0), default=replaying.CANARY_WAIT_S,
              show_default=True, help="Seconds to wait for the canary's end.")  # fmt: skip
@click.option("--to-lane", default="", help="To this lane instead of the letter's own.")
@click.option("--delay", type=click.FloatRange(min=0), default=0.0,
              help="Run not before so many seconds.")  # fmt: skip
@click.option("--despite-chord", is_flag=True, help="Also where the chord has failed already.")
@_yes
@_json
@click.pass_context
@told
def replay(
    ctx: click.Context, wanted: Filter, everything: bool, dry_run: bool, rate: float | None,
    canary: int, max_failures: int, canary_wait: float, to_lane: str, delay: float,
    despite_chord: bool, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Send letters again: the message as it was, under its own id, from the failed step on.

    Safe to interrupt and to begin again, and for two people at once.
    """
    app = app_of(ctx)
    count = _count(app, wanted, everything)
    how = How(rate or 0.0, canary, max_failures, canary_wait, to_lane, delay, despite_chord)
    letters = letters_of(app).walk(wanted)
    if dry_run:
        _say(replaying.dry_run(app, letters, how), as_json, dry=True)
        return
    if not yes and not as_json and count > 1:
        click.confirm(f"Send {count} letters again?", abort=True)
    with _progress(count, as_json) as step:
        report = replaying.replay(app, letters, how, step)
    _say(report, as_json)
    kept = sum(n for fate, n in report.fates.items() if fate not in _FINE)
    if report.stopped or kept:
        ctx.exit(1)


@click.command(short_help="Delete letters by their ids.")
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@_yes
@click.pass_context
@told
def delete(ctx: click.Context, ids: tuple[str, ...], yes: bool) -> None:
    """Delete letters by their ids. They can't be brought back: export them first."""
    if not yes:
        click.confirm(f"Delete {len(ids)} letters for good?", abort=True)
    store = letters_of(app_of(ctx))
    gone = [each for each in ids if store.delete(each)]
    click.echo(f"{len(gone)} deleted")
    if len(gone) < len(ids):
        ctx.exit(1)


@click.command(short_help="Delete the letters of a filter, or --all.")
@filtered
@_all
@_yes
@click.pass_context
@told
def purge(ctx: click.Context, wanted: Filter, everything: bool, yes: bool) -> None:
    """Delete the letters of a filter, or --all. They can't be brought back: export them first."""
    app = app_of(ctx)
    count = _count(app, wanted, everything)
    if not count:
        click.echo("no such letters")
        return
    if not yes:
        click.confirm(f"Delete {count} letters for good?", abort=True)
    store = letters_of(app)
    gone = sum(1 for letter in store.walk(wanted) if store.delete(letter.id))
    click.echo(f"{gone} deleted")


def _count(app: Any, wanted: Filter, everything: bool) -> int:
    if wanted == Filter() and not everything:
        raise click.UsageError("say which: ids, a filter (--task, --group, …), or --all")
    store = letters_of(app)
    count = store.count(wanted)
    expect_some(store, count, wanted)
    return count


def _say(report: Report, as_json: bool, dry: bool = False) -> None:
    if as_json:
        shown.dump({
            "dry_run": dry,
            "fates": {fate.value: n for fate, n in report.fates.items()},
            "sent": 0 if dry else report.sent,
            "canary_failures": report.canary_failures,
            "stopped": report.stopped,
        })  # fmt: skip
        return
    for fate, count in report.fates.items():
        text = _TEXTS[fate]
        click.echo(f"{count:>7}  {text.replace('sent', 'would be sent', 1) if dry else text}")
    if not report.fates:
        click.echo("no such letters")
    if report.stopped:
        click.echo(f"stopped: {report.canary_failures} of the canary died; the rest is untouched",
                   err=True)  # fmt: skip


@contextmanager
def _progress(count: int, quiet: bool) -> Iterator[Callable[[Letter, Fate], None] | None]:
    if quiet or not shown.on_terminal() or count < 2:
        yield None
        return
    with click.progressbar(length=count, label="replaying") as bar:
        yield lambda letter, fate: bar.update(1)
