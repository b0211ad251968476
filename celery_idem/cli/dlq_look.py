"""``dlq list, groups, show, stats``: what there is."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import click

from celery_idem.cli import dlq_shown as shown
from celery_idem.cli.dlq_filter import When, app_of, expect_some, filtered
from celery_idem.cli.dlq_table import Table
from celery_idem.cli.told import told
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letter_settings_of, letters_of
from celery_idem.deadletters.describe import arguments_shown, record_told
from celery_idem.deadletters.letter import Reason

DEFAULT_LIMIT = 50

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command(name="list")
@filtered
@click.option("--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True,
              help="At most so many.")  # fmt: skip
@click.option("--after", type=click.IntRange(min=0), default=0,
              help="Go on after this position (see --json's last letter).")  # fmt: skip
@_json
@click.pass_context
@told
def list_letters(ctx: click.Context, wanted: Filter, limit: int, after: int, as_json: bool) -> None:
    """Dead letters, the newest first."""
    app = app_of(ctx)
    store = letters_of(app)
    letters = store.page(wanted, after, limit)
    expect_some(store, len(letters), wanted)
    how = letter_settings_of(app).arguments
    if as_json:
        shown.dump([
            {**shown.as_dict(it, arguments_shown(it, how)), "position": it.position}
            for it in letters
        ])  # fmt: skip
        return
    shown.letters_table(shown.many(len(letters), "dead letter"), letters)
    if len(letters) == limit and shown.on_terminal():
        click.echo(f"more: --after {letters[-1].position}")


@click.command()
@filtered
@click.option("--against", type=When(), default=0,
              help="With --since: compare with the time from here to --since.")  # fmt: skip
@_json
@click.pass_context
@told
def groups(ctx: click.Context, wanted: Filter, against: int, as_json: bool) -> None:
    """Letters by fault: error type and the place that raised it.

    `groups --since 1d --against 8d` says which faults are new since yesterday, and which of the
    week before are gone.
    """
    if against and not wanted.since_ms:
        raise click.UsageError("--against needs --since: what is before it is compared with it")
    if against and against >= wanted.since_ms:
        raise click.UsageError("--against must be before --since, as in --since 1d --against 8d")
    store = letters_of(app_of(ctx))
    now = store.groups(wanted)
    if not against:
        if as_json:
            shown.dump([shown.group_dict(it) for it in now])
            return
        shown.groups_table(
            f"{shown.many(sum(it.count for it in now), 'letter')}, {shown.many(len(now), 'fault')}",
            now,
        )
        return
    before = store.groups(replace(wanted, since_ms=against, until_ms=wanted.since_ms))
    new = [it for it in now if it.group not in {was.group for was in before}]
    gone = [was for was in before if was.group not in {it.group for it in now}]
    still = [it for it in now if it not in new]
    if as_json:
        parts = (("new", new), ("gone", gone), ("still", still))
        shown.dump({name: [shown.group_dict(it) for it in part] for name, part in parts})
        return
    for name, part in (("new", new), ("still there", still), ("gone", gone)):
        shown.groups_table(f"{name}: {len(part)}", part)


@click.command()
@click.argument("letter_id", metavar="ID")
@click.option("--body", is_flag=True, help="Print the message's body, byte for byte, and no more.")
@_json
@click.pass_context
@told
def show(ctx: click.Context, letter_id: str, body: bool, as_json: bool) -> None:
    """One letter: error, arguments, history, traceback. Of a replayed one, its history."""
    app = app_of(ctx)
    letter = letters_of(app).get(letter_id)
    if letter is None:
        _show_trail(app, letter_id, as_json)
        return
    if body:
        click.echo(letter.message.body, nl=False)
        return
    arguments = arguments_shown(letter, letter_settings_of(app).arguments)
    if as_json:
        shown.dump(shown.whole_dict(letter, arguments))
        return
    shown.page(letter, arguments, record_told(app, letter))


@click.command()
@filtered
@click.option("--fail-if-any", is_flag=True, help="Exit code 1 when there is a letter.")
@_json
@click.pass_context
@told
def stats(ctx: click.Context, wanted: Filter, fail_if_any: bool, as_json: bool) -> None:
    """How many letters, by reason and in the last hour and day."""
    store = letters_of(app_of(ctx))
    now_ms = int(time.time() * 1000)
    total = store.count(wanted)
    counted: dict[str, Any] = {
        "letters": total,
        "last_hour": store.count(replace(wanted, since_ms=now_ms - 3_600_000)),
        "last_day": store.count(replace(wanted, since_ms=now_ms - 86_400_000)),
        "reasons": {
            it.value: count
            for it in Reason
            if total and not wanted.reason and (count := store.count(replace(wanted, reason=it)))
        },
    }
    if as_json:
        shown.dump(counted)
    else:
        reasons: dict[str, int] = counted.pop("reasons")
        rows = [*counted.items(), *((f"reason {name}", n) for name, n in reasons.items())]
        shown.show(Table(("what", "letters"), [[name, str(n)] for name, n in rows]))
    if fail_if_any and total:
        ctx.exit(1)


def _show_trail(app: Any, letter_id: str, as_json: bool) -> None:
    trail = letters_of(app).trail(letter_id)
    if not trail:
        raise click.ClickException(f"no letter {letter_id}")
    if as_json:
        shown.dump({"id": letter_id, "replayed": True, "history": shown.history_dicts(trail)})
        return
    click.echo(f"{letter_id} was sent again, and has not come back:")
    for attempt in trail:
        click.echo(f"  {shown.when(attempt.at_ms)}  {attempt.what}  {attempt.by}  {attempt.detail}")
