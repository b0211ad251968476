"""``dlq export, import, collect``: letters out, in, and from a broker's queue."""

from __future__ import annotations

from typing import IO

import click

from celery_idem.cli.dlq_filter import app_of, expect_some, filtered
from celery_idem.cli.told import told
from celery_idem.deadletters import moving
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letter_settings_of, letters_of
from celery_idem.transport import buried


@click.command()
@filtered
@click.option("--to", type=click.File("w", lazy=False), default="-",
              help="A file; default: standard output.")  # fmt: skip
@click.pass_context
@told
def export(ctx: click.Context, wanted: Filter, to: IO[str]) -> None:
    """Write letters as JSON lines, whole: bodies, headers, history."""
    count = 0
    store = letters_of(app_of(ctx))
    for letter in store.walk(wanted):
        to.write(moving.dump(letter) + "\n")
        count += 1
    expect_some(store, count, wanted)
    click.echo(f"{count} exported", err=True)


@click.command(name="import", short_help="Store letters that export wrote.")
@click.argument("source", type=click.File("r"), default="-")
@click.pass_context
@told
def import_letters(ctx: click.Context, source: IO[str]) -> None:
    """Store letters that export wrote, from a file or from standard input.

    One that is there already is left as it is.
    """
    store = letters_of(app_of(ctx))
    stored = there = 0
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        try:
            letter = moving.load(line)
        except (ValueError, KeyError, TypeError) as error:
            raise click.ClickException(f"line {number} is no letter: {error}") from error
        if store.get(letter.id) is not None:
            there += 1
            continue
        store.put(letter)
        stored += 1
    click.echo(f"{stored} imported, {there} were there already", err=True)


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]…")
@click.option("--limit", type=click.IntRange(min=0), default=0,
              help="At most so many; 0: until the queue is empty.")  # fmt: skip
@click.pass_context
@told
def collect(ctx: click.Context, queues: tuple[str, ...], limit: int) -> None:
    """Bring letters of broker queues into the store.

    Those of route="queue", what RabbitMQ itself has dead-lettered, and what redis-streams:// has
    set aside. Default: the queue of the settings, and all that redis-streams:// has set aside.
    """
    app = app_of(ctx)
    for queue in queues or (letter_settings_of(app).queue,):
        count = moving.collect(app, queue, limit)
        click.echo(f"{count} collected from {queue}")
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        if buried.has_buried(channel):
            for queue in queues or buried.queues(channel):
                count = buried.collect(app, channel, queue, limit)
                click.echo(f"{count} collected from what was set aside of {queue}")
