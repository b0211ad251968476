"""The pages about dead letters name only commands and options that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from celery_idem.cli.dlq import dlq
from celery_idem.cli.idem import idem

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["runbook.md", "dead-letters.md", "a-morning-with-the-dlq.md", "metrics.md"]
GROUPS = {"dlq": dlq, "idem": idem}
CALL = re.compile(
    r"(?:^\$ |`|: )(?:celery (?:-A \S+ )?|manage\.py )?((?:dlq|idem) [^`\n#|]+)", re.MULTILINE
)


def calls(page: str) -> Iterator[list[str]]:
    """The commands of a page, as words; what follows an ellipsis is not one."""
    for found in CALL.finditer((DOCS / page).read_text()):
        words = found[1].strip(' ."}').split()
        if words[1] != "…":
            yield words


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_is_there_with_its_options(page: str) -> None:
    seen = 0
    for words in calls(page):
        command: click.Command = GROUPS[words[0]]
        context = click.Context(command)
        for at, word in enumerate(words[1:], 1):
            if isinstance(command, click.Group) and not word.startswith("-"):
                found = command.get_command(context, word)
                assert found is not None, f"{page}: {' '.join(words[: at + 1])}"
                command = found
        known = {name for it in command.params for name in (*it.opts, *it.secondary_opts)}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= known | {"--help"}, f"{page}: {' '.join(words)}"
        seen += 1
    assert seen > 0
