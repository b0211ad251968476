"""``celery idem show, list, release, revoke, prune, stats``: the records of keys.

``manage.py idem`` is the same commands.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from celery_idem.cli.told import told
from celery_idem.core.describe import described_result, described_step, task_of, when
from celery_idem.core.record import Record, State
from celery_idem.core.settings import DEFAULT_REVOKE_S
from celery_idem.delivery import described_attempt, scope_of
from celery_idem.stores.base import Store

#: Records that ``list`` shows and ``stats`` counts, unless told otherwise.
DEFAULT_LIMIT = 100
STATS_LIMIT = 100_000
#: Records that ``prune`` deletes in one batch.
BATCH = 1000


def store_of(ctx: click.Context) -> Store:
    """The store of the app that was given with ``-A``, or of the Django project."""
    from celery_idem.binding import store_of as of

    app = getattr(ctx.obj, "app", None)
    if app is None:
        raise click.ClickException("which app? celery -A proj idem …")
    return of(app)


class Key(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A whole key, as ``list`` shows it."""

    name = "key"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if not str(value).strip():
            self.fail("a key is not empty: give all of it, as list shows it", param, ctx)
        return str(value)


KEY = Key()
#: at least one
SOME = click.IntRange(min=1)
#: Longest time for which a key is revoked, in seconds: a hundred years of 365 days.
MAX_REVOKE_S = 100 * 365 * 86400

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command(name="show")
@click.argument("key", type=KEY)
@_json
@click.pass_context
@told
def show(ctx: click.Context, key: str, as_json: bool) -> None:
    """Everything known of KEY.

    All of it, as list shows it: the task's name, ':', and the task's own key.
    """
    store = store_of(ctx)
    record = found(store, key)
    if as_json:
        click.echo(json.dumps(as_dict(record), indent=2))
        return
    click.echo(described(record))


@click.command(name="list")
@click.option("--contains", default="", help="Only keys that contain this text.")
@click.option("--task", default=None, help="Only keys of the task of this name.")
@click.option("--state", type=click.Choice([*(s.value for s in State), "revoked", "crashed"]),
              default=None, help="Only these; crashed: with at least one crash.")  # fmt: skip
@click.option("--limit", type=SOME, default=DEFAULT_LIMIT, show_default=True,
              help="At most so many.")  # fmt: skip
@_json
@click.pass_context
@told
def list_records(
    ctx: click.Context, contains: str, task: str | None, state: str | None, limit: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Records of keys, as a table or a JSON array."""
    records = search(store_of(ctx), Filter(contains, task, state), limit)
    if as_json:
        click.echo(json.dumps([as_dict(record) for record in records], indent=2))
        return
    if not records:
        click.echo("no such records")
        return
    head = ("key", "state", "task id", "runs", "crashes", "failures", "steps", "expires")
    click.echo(table(head, [_line(record) for record in records]))


@click.command(name="release")
@click.argument("key", type=KEY)
@_json
@click.pass_context
@told
def release(ctx: click.Context, key: str, as_json: bool) -> None:
    """Free KEY, all of it as list shows it.

    Whoever holds it does no longer; crashes and a revocation are forgiven. Done steps stay done. A
    key whose work is done stays as it is.
    """
    store = store_of(ctx)
    record = found(store, key)
    freed = store.free(key)
    if not freed:
        raise click.ClickException(
            f"{key!r} is done (by task {record.task_id}), and is not freed: it would run again"
        )
    _say(as_json, {"key": key, "released": True}, f"{key!r} is free")


@click.command(name="revoke")
@click.argument("key", type=KEY)
@click.option("--for", "for_s", default=DEFAULT_REVOKE_S, show_default="30 days",
              help="Seconds for which it stays revoked.")  # fmt: skip
@_json
@click.pass_context
@told
def revoke(ctx: click.Context, key: str, for_s: float, as_json: bool) -> None:
    """Never run KEY again.

    Not by a delivery, a retry or a replay; release takes it back. Work that runs now is not
    stopped. KEY is the task's name, ':', and the task's own key, as list shows it.
    """
    if not 0 < for_s <= MAX_REVOKE_S:
        raise click.BadParameter(
            f"it must be more than 0 and at most {MAX_REVOKE_S} seconds, not {for_s:g}",
            param_hint="--for",
        )
    store = store_of(ctx)
    before = store.get(key)
    store.revoke(key, round(for_s * 1000))
    answer = {"key": key, "revoked": True, "for_s": for_s, "known": before is not None}
    _say(as_json, answer, f"{key!r} is revoked{_but(key, before)}")


def _but(key: str, before: Record | None) -> str:
    """What whoever revokes the key may not expect."""
    if before is None:
        return (
            "; nothing was known of it. If that is a surprise: a task's key begins with the "
            "task's name, as list shows it, and release takes this one back"
        )
    if before.state is State.DONE:
        return f"; but its work is done, by task {before.task_id or '-'}: duplicates get the result"
    return ""


@click.command(name="prune")
@click.option("--batch", type=SOME, default=BATCH, show_default=True, help="Records of one batch.")
@click.option("--max", "most", type=SOME, default=None, help="Stop after about so many.")
@_json
@click.pass_context
@told
def prune(ctx: click.Context, batch: int, most: int | None, as_json: bool) -> None:
    """Delete records that are past their retention, in batches.

    Redis lets them expire by itself; a database needs this once a day or so.
    """
    gone = prune_store(store_of(ctx), batch, most)
    if gone is None:
        _say(as_json, {"pruned": 0}, "nothing to prune: this store lets records expire by itself")
        return
    _say(as_json, {"pruned": gone}, f"{gone} expired records deleted")


@click.command(name="stats")
@click.option("--limit", type=SOME, default=STATS_LIMIT, show_default=True,
              help="Count at most so many.")  # fmt: skip
@_json
@click.pass_context
@told
def stats(ctx: click.Context, limit: int, as_json: bool) -> None:
    """How many records in which state, for each task.

    In brackets what is no task's: cool-downs, steps that tasks share, and plain code.
    """
    counted = count(store_of(ctx).scan(limit=limit))
    if as_json:
        click.echo(json.dumps(counted, indent=2))
        return
    columns = (*(s.value for s in State), "revoked", "crashes", "failures")
    rows = [
        (task, *(str(numbers[c]) for c in columns)) for task, numbers in sorted(counted.items())
    ]
    click.echo(table(("task", *columns), rows) if rows else "no records")


# --- what the commands are made of -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are wanted."""

    contains: str = ""
    task: str | None = None
    state: str | None = None

    def takes(self, record: Record) -> bool:
        """Whether the record is one of them."""
        if self.task is not None and not record.key.startswith(f"{scope_of(self.task)}:"):
            return False
        if self.state == "revoked":
            return record.revoked
        if self.state == "crashed":
            return record.crashes > 0
        return self.state is None or record.state.value == self.state


def found(store: Store, key: str) -> Record:
    """The record. Raises ``ClickException`` that names records with similar keys."""
    record = store.get(key)
    if record is not None:
        return record
    near = [other.key for other in store.scan(key.rpartition(":")[2] or key, limit=3)]
    hint = f"; there is {', '.join(repr(k) for k in near)}" if near else ""
    raise click.ClickException(f"no record of {key!r}{hint}")


def search(store: Store, wanted: Filter, limit: int) -> list[Record]:
    """The first ``limit`` records that the filter takes."""
    contains = wanted.contains or (f"{scope_of(wanted.task)}:" if wanted.task else "")
    scanned = limit if wanted == Filter(wanted.contains) else STATS_LIMIT
    records: list[Record] = []
    for record in store.scan(contains, limit=scanned):
        if len(records) >= limit:
            break
        if wanted.takes(record):
            records.append(record)
    return records


def prune_store(store: Store, batch: int = BATCH, most: int | None = None) -> int | None:
    """Delete expired records until none are left; ``None`` where the store does so by itself."""
    prune_some = getattr(store, "prune", None)
    if prune_some is None:
        return None
    total = 0
    while most is None or total < most:
        gone = int(prune_some(limit=batch))
        total += gone
        if not gone:
            break
    return total


def count(records: Iterable[Record]) -> dict[str, Counter[str]]:
    """Task name → how many in which state, and its crashes and failures."""
    counted: dict[str, Counter[str]] = {}
    for record in records:
        numbers = counted.setdefault(task_of(record), Counter())
        numbers[record.state.value] += 1
        numbers["revoked"] += record.revoked
        numbers["crashes"] += record.crashes
        numbers["failures"] += record.failures
    return counted


def as_dict(record: Record) -> dict[str, Any]:
    """The record for JSON. Results are described, not shown: they may be secrets."""
    return {
        "key": record.key,
        "state": record.state.value,
        "revoked": record.revoked,
        "task_id": record.task_id,
        "attempt": record.attempt,
        "fence": record.fence,
        "runs": record.runs,
        "crashes": record.crashes,
        "failures": record.failures,
        "releases": record.releases,
        "created": when(record.created_ms),
        "done": when(record.done_ms),
        "lease_until": when(record.lease_until_ms),
        "expires": when(record.expires_ms),
        "fingerprint": record.fingerprint,
        "result": described_result(record.result),
        "settled": sorted(record.settled),
        "steps": {name: described_step(value) for name, value in record.steps.items() if value},
    }


def described(record: Record) -> str:
    """The record for a person."""
    lines = []
    for name, value in {**as_dict(record), "attempt": described_attempt(record.attempt)}.items():
        if name == "steps":
            lines.append(f"{'steps':12} {len(value)}")
            lines += [f"  {step:30} {how}" for step, how in value.items()]
        elif value not in (None, "", []):
            lines.append(f"{name:12} {', '.join(value) if isinstance(value, list) else value}")
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns, each as wide as its widest cell; numbers to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if rows[0][i].isdigit() else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _line(record: Record) -> tuple[str, ...]:
    state = f"{record.state.value}, revoked" if record.revoked else record.state.value
    return (
        record.key,
        state,
        record.task_id or "-",
        str(record.runs),
        str(record.crashes),
        str(record.failures),
        str(sum(1 for value in record.steps.values() if value)),
        when(record.expires_ms) or "never",
    )


def _say(as_json: bool, answer: dict[str, Any], sentence: str) -> None:
    click.echo(json.dumps(answer) if as_json else sentence)
