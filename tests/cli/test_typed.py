"""What a newcomer types: a wrong word, a wrong number, no app at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from celery import Celery
from click.testing import CliRunner, Result

from celery_idem.cli.dlq import dlq
from celery_idem.cli.idem import idem

#: Columns of a narrow terminal.
WIDTH = 80


def typing(group: click.Group, *words: str) -> Result:
    app = Celery("typed", broker="memory://", set_as_current=False)
    return CliRunner().invoke(group, words, obj=SimpleNamespace(app=app), terminal_width=WIDTH)


def leaves(group: click.Group, *names: str) -> list[tuple[str, ...]]:
    """All commands of a group and of those in it, as they are typed."""
    context = click.Context(group)
    found: list[tuple[str, ...]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        words = (*names, name)
        found += leaves(command, *words) if isinstance(command, click.Group) else [words]
    return found


@pytest.mark.parametrize(
    ("group", "typed", "meant"),
    [(idem, ["lst"], "list"), (dlq, ["replai"], "replay"), (idem, ["broker", "stats"], "status")],
)
def test_the_nearest_command_is_named_for_a_typo(
    group: click.Group, typed: list[str], meant: str
) -> None:
    ended = typing(group, *typed)

    assert ended.exit_code == 2
    assert ended.output.count(f"Did you mean {meant!r}?") == 1


@pytest.mark.parametrize("group", [idem, dlq])
def test_the_list_of_commands_cuts_no_sentence_off(group: click.Group) -> None:
    listed = typing(group, "--help").output.partition("Commands:")[2]

    assert listed
    assert "..." not in listed


@pytest.mark.parametrize("group", [idem, dlq])
def test_every_option_is_explained(group: click.Group) -> None:
    for words in leaves(group):
        command: Any = group
        for name in words:
            command = command.get_command(click.Context(command), name)
        bare = [it.opts for it in command.params if isinstance(it, click.Option) and not it.help]
        assert command.help, words
        assert not bare, (words, bare)


@pytest.mark.parametrize(
    "typed",
    [
        "dlq list --limit 0", "dlq list --after -1", "dlq list --since 1d --until 2d",
        "dlq list --since yesterday", "dlq groups --against 8d",
        "dlq groups --since 8d --against 1d", "dlq replay", "dlq replay --all --rate 0",
        "dlq replay --all --canary -1", "dlq replay --all --delay -1", "dlq collect --limit -1",
        "dlq export --to /nowhere/letters", "dlq floods --timeout 0", "idem check --timeout 0",
        "idem lanes --timeout 0", "idem list --limit 0", "idem revoke k --for 0",
        "idem simulate --processes 0", "idem tune --days 0", "idem broker drain --idle -1",
    ],
)  # fmt: skip
def test_a_number_that_makes_no_sense_is_refused(typed: str) -> None:
    name, *words = typed.split()

    ended = typing({"idem": idem, "dlq": dlq}[name], *words)

    assert ended.exit_code == 2, ended.output
    assert "Error: " in ended.output


@pytest.mark.parametrize(
    "typed", ["idem list", "idem lanes", "idem check", "idem tune", "dlq list"]
)
def test_a_forgotten_app_is_said(tmp_path: Path, typed: str) -> None:
    """Celery makes one up, whose broker is RabbitMQ on this machine and which has no tasks."""
    forgotten = {it: "" for it in os.environ if it.startswith(("CELERY_", "DJANGO_"))}
    env = {name: it for name, it in os.environ.items() if name not in forgotten}

    ended = subprocess.run(
        [sys.executable, "-m", "celery", *typed.split()],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ended.returncode in (1, 2)
    assert "No app was given: celery -A proj …" in ended.stderr
    assert "Traceback" not in ended.stderr
