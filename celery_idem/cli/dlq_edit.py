"""``dlq edit``: other arguments, for one letter or for all of a fault."""

from __future__ import annotations

import json
from typing import Any

import click

from celery_idem.cli.dlq_filter import app_of, filtered
from celery_idem.cli.told import told
from celery_idem.deadletters import edit as editing
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.edit import Edit
from celery_idem.deadletters.letter import Letter


@click.command(short_help="Give letters other arguments, before a replay.")
@filtered
@click.option("--set", "changes", multiple=True, metavar="NAME=JSON",
              help="Another value for the argument of this name, in every letter. A value that is "
                   "no JSON is text. Several times.")  # fmt: skip
@click.option("--args", "args_json", default=None, help="All positional arguments, a JSON array.")
@click.option("--kwargs", "kwargs_json", default=None, help="All keyword arguments, a JSON object.")
@click.option("--dry-run", is_flag=True, help="Show the difference, and change nothing.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.pass_context
@told
def edit(
    ctx: click.Context, wanted: Filter, changes: tuple[str, ...], args_json: str | None,
    kwargs_json: str | None, dry_run: bool, yes: bool,
) -> None:  # fmt: skip
    """Give letters other arguments; the first ones are kept beside them, and nothing is sent.

    One letter: --args, --kwargs, --set, or without any of them an editor. Several, by ids or a
    filter: --set. The difference of the first is shown, and nothing is saved unless all can be.
    """
    app = app_of(ctx)
    if wanted == Filter():
        raise click.UsageError("say which: ids, or a filter (--group, --task, …)")
    if changes and (args_json is not None or kwargs_json is not None):
        raise click.UsageError("--set changes single arguments, --args and --kwargs give all")
    letters = list(letters_of(app).walk(wanted))
    if not letters:
        raise click.ClickException(f"no letter {' '.join(wanted.ids)}".rstrip())
    if len(letters) > 1 and not changes:
        raise click.UsageError(f"{len(letters)} letters: say what changes in each, --set NAME=JSON")
    if changes:
        edits = _with_values(app, letters, dict(_change(it) for it in changes))
    else:
        edits = [_whole(app, letters[0], args_json, kwargs_json)]
    _show(edits)
    if dry_run or not (yes or click.confirm(f"Save{_many(edits)}?")):
        return
    saved = sum(editing.save(app, each) for each in edits)
    if saved < len(edits):
        raise click.ClickException(f"{saved} saved; {len(edits) - saved} are gone")
    if len(letters) == 1:
        click.echo(f"saved; send it with: dlq replay {letters[0].id}")
    else:
        click.echo(f"{saved} saved; send them with dlq replay and the same filter")


def _whole(app: Any, letter: Letter, args_json: str | None, kwargs_json: str | None) -> Edit:
    if args_json is None and kwargs_json is None:
        args_json, kwargs_json = _in_editor(letter)
    return editing.prepare(app, letter, _parsed(args_json, list), _parsed(kwargs_json, dict))


def _with_values(app: Any, letters: list[Letter], values: dict[str, Any]) -> list[Edit]:
    return [editing.prepare(app, it, *editing.with_values(app, it, values)) for it in letters]


def _show(edits: list[Edit]) -> None:
    first = edits[0]
    click.echo(first.diff or "no difference in the arguments")
    if first.new_key != first.old_key:
        click.echo(f"key: {first.old_key} -> {first.new_key}")
    if len(edits) > 1:
        click.echo(f"and {len(edits) - 1} more like it")


def _many(edits: list[Edit]) -> str:
    return f" {len(edits)}" if len(edits) > 1 else ""


def _change(text: str) -> tuple[str, Any]:
    """
    >>> _change("number=7"), _change("product=Kettle"), _change('name="7"')
    (('number', 7), ('product', 'Kettle'), ('name', '7'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--set {text}: must be NAME=JSON")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _in_editor(letter: Letter) -> tuple[str, str]:
    args, kwargs, _ = editing.arguments_of(letter.message)
    text = json.dumps({"args": args, "kwargs": kwargs}, indent=2, ensure_ascii=False)
    edited = click.edit(text, extension=".json")
    if edited is None:
        raise click.Abort
    both = _parsed(edited, dict)
    return json.dumps(both.get("args", [])), json.dumps(both.get("kwargs", {}))


def _parsed(text: str | None, kind: type) -> Any:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.ClickException(f"not JSON: {error}") from error
    if not isinstance(value, kind):
        wanted = "an array" if kind is list else "an object"
        raise click.ClickException(f"must be {wanted} in JSON, not {text}")
    return value
