"""``celery idem broker status, drain, rollback``: the streams transport, and moving in and out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

import celery_idem.transport  # noqa: F401 - makes redis-streams:// known
from celery_idem.cli import broker_shown as shown
from celery_idem.cli.lazy import NearestGroup
from celery_idem.cli.told import told
from celery_idem.transport import moving, status

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_queues = click.option("-Q", "--queues", "named", multiple=True, metavar="a,b",
                       help="Only these queues; may be given again.")  # fmt: skip
_dry_run = click.option("--dry-run", is_flag=True, help="Say what would be moved; move nothing.")
_yes = click.option("--yes", is_flag=True, help="Don't ask.")


@click.group(name="broker", cls=NearestGroup,
             short_help="A redis-streams:// broker: what it holds, moving in and out.")  # fmt: skip
def broker() -> None:
    """What a redis-streams:// broker holds; moving from redis:// and back."""


@broker.command(name="status", short_help="Queues, workers' leases, and what can lose messages.")
@_json
@click.pass_context
@told
def show_status(ctx: click.Context, as_json: bool) -> None:
    """Queues, workers' leases, what is left in stock's lists, and what can lose messages."""
    with _channel(ctx) as channel:
        connection = channel.connection.client
        queues = [lane for lane in status.lanes(connection) if not _is_ours(lane.queue)]
        workers = status.sessions(connection)
        stock = status.stock(channel)
        warnings = status.warnings(channel.raw)
    if as_json:
        shown.dump({
            "queues": [asdict(lane) for lane in queues],
            "workers": [asdict(worker) for worker in workers],
            "stock": asdict(stock),
            "warnings": warnings,
        })  # fmt: skip
        return
    shown.status(queues, workers, stock, warnings)


@broker.command()
@_queues
@click.option("--idle", "idle_s", type=click.FloatRange(min=0), default=None,
              help="Also what stock workers took longer ago than so many seconds, and did not "
              "ack. Default: the visibility_timeout. 0 only when none of them runs.")  # fmt: skip
@_dry_run
@_yes
@_json
@click.pass_context
@told
def drain(
    ctx: click.Context, named: tuple[str, ...], idle_s: float | None, dry_run: bool, yes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Move what waits in the lists of redis:// into the streams.

    Producers and workers may go on. Safe to interrupt and to begin again.
    """
    with _channel(ctx) as channel:
        queues = _chosen(named, moving.stock_queues(channel), _declared(ctx))
        if idle_s is not None and idle_s < channel.visibility_timeout and not (yes or dry_run):
            click.confirm(
                f"What stock workers took more than {idle_s:g} s ago is moved, and runs again if "
                "they are still at it. Go on?",
                abort=True,
            )

        def move(**how: Any) -> list[moving.Moved]:
            return moving.drain(channel.connection.client, queues, idle_s=idle_s, **how)

        _move(move, "into the streams", dry_run, as_json)


@broker.command()
@_queues
@_dry_run
@_json
@click.pass_context
@told
def rollback(ctx: click.Context, named: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Move what waits in the streams back into the lists of redis://.

    Stop the workers on redis-streams:// first: what they hold stays with them. Delayed messages
    go along with their ETA. Safe to interrupt and to begin again.
    """
    with _channel(ctx) as channel:
        present = [name for name in status.known_queues(channel) if not _is_ours(name)]
        queues = _chosen(named, present, _declared(ctx))

        def move(**how: Any) -> list[moving.Moved]:
            return moving.roll_back(channel.connection.client, queues, **how)

        _move(move, "into the lists", dry_run, as_json)
        held = sum(lane.held for lane in status.lanes(channel.connection.client))
    if held:
        click.echo(f"{held} messages are still held by workers: stop them, then again", err=True)


# --- what the commands are made of -----------------------------------------------------


@contextmanager
def _channel(ctx: click.Context) -> Iterator[Any]:
    """A channel to the app's broker; what goes wrong with the server is said in a sentence."""
    app = getattr(ctx.obj, "app", None)
    if app is None:
        raise click.ClickException("which app? celery -A proj idem broker …")
    connection = app.connection_for_write()
    try:
        with connection:
            yield moving.channel_of(connection)
    except (RedisError, OperationalError, *connection.connection_errors) as error:
        raise click.ClickException(f"{connection.as_uri()}: {error}") from error


def _declared(ctx: click.Context) -> list[str]:
    """Queues that the app's settings name."""
    return list(ctx.obj.app.amqp.queues)


def _is_ours(queue: str) -> bool:
    return moving.is_for_control(queue)


def _chosen(named: Sequence[str], present: Sequence[str], declared: Sequence[str]) -> list[str]:
    """The queues that were asked for, else all that are known."""
    known = sorted({*present, *declared})
    asked = [name.strip() for part in named for name in part.split(",") if name.strip()]
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise click.UsageError(
            f"no queue {', '.join(map(repr, unknown))}; there is {', '.join(known)}"
        )
    return list(dict.fromkeys(asked)) or known


def _move(
    move: Callable[..., list[moving.Moved]], where: str, dry_run: bool, as_json: bool
) -> None:
    """Move (or count), with a bar where a person looks on, and say what came of it."""
    if dry_run:
        shown.moved(move(dry_run=True), where, dry_run, as_json)
        return
    if as_json or not sys.stderr.isatty():
        shown.moved(move(), where, dry_run, as_json)
        return
    expected = sum(row.total for row in move(dry_run=True))
    try:
        with click.progressbar(length=expected, label="moving", file=sys.stderr) as bar:
            rows = move(progress=bar.update)
    except KeyboardInterrupt:
        raise click.ClickException(
            "stopped: what was moved is moved, the rest is where it was; the same command goes on"
        ) from None
    shown.moved(rows, where, dry_run, as_json)
