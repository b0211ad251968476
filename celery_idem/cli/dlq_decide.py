"""``dlq decide``: whether an at-most-once step happened."""

from __future__ import annotations

import json

import click

from celery_idem.cli.dlq_filter import app_of
from celery_idem.cli.told import told
from celery_idem.deadletters import deciding
from celery_idem.deadletters.choose import letters_of


@click.command(short_help="Say whether an uncertain step has happened.")
@click.argument("letter_id", metavar="ID")
@click.option("--happened/--did-not-happen", "happened", default=None,
              help="What you found out on the other side.")  # fmt: skip
@click.option("--step", default="", help="Which step, where more than one is undecided.")
@click.option("--result", "result_json", default="null", show_default=True,
              help="What the step would have returned, as JSON; with --happened.")  # fmt: skip
@click.pass_context
@told
def decide(
    ctx: click.Context, letter_id: str, happened: bool | None, step: str, result_json: str
) -> None:
    """Say of a step that was started and not seen to end (reason: uncertain) whether it happened.

    Happened: it is done, and a replay goes on behind it. Did not: a replay runs it. Nothing is sent
    by this command.
    """
    if happened is None:
        raise click.UsageError("say what you know: --happened or --did-not-happen")
    app = app_of(ctx)
    letter = letters_of(app).get(letter_id)
    if letter is None:
        raise click.ClickException(f"no letter {letter_id}")
    try:
        result = json.loads(result_json)
    except ValueError as error:
        raise click.ClickException(f"--result is not JSON: {error}") from error
    names = deciding.undecided(app, letter)
    if not names:
        raise click.ClickException(f"no step of {letter.key or letter_id!r} is undecided")
    if not step and len(names) > 1:
        raise click.UsageError(f"which step? --step {' or '.join(names)}")
    decision = deciding.Decision(step or names[0], happened, result)
    deciding.decide(app, letter, decision)
    word = "happened" if happened else "did not happen"
    click.echo(f"step {decision.step!r} {word}; send it with: dlq replay {letter_id}")
