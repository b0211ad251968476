"""``celery -A proj dlq`` and ``manage.py dlq``: dead letters, from first look to replay.

Exit codes: 0 done · 1 not all of it (a letter that is not there, a canary that failed, letters
there with ``stats --fail-if-any``) or an error of this package · 2 wrong usage.
"""

from __future__ import annotations

import importlib
from typing import Any

import click
from celery.bin.base import handle_preload_options

#: command → "module:attribute"; a module is loaded when its command is called.
COMMANDS: dict[str, str] = {
    "list": "celery_idem.cli.dlq_look:list_letters",
    "groups": "celery_idem.cli.dlq_look:groups",
    "show": "celery_idem.cli.dlq_look:show",
    "stats": "celery_idem.cli.dlq_look:stats",
    "floods": "celery_idem.cli.dlq_floods:floods",
    "replay": "celery_idem.cli.dlq_act:replay",
    "edit": "celery_idem.cli.dlq_edit:edit",
    "decide": "celery_idem.cli.dlq_decide:decide",
    "delete": "celery_idem.cli.dlq_act:delete",
    "purge": "celery_idem.cli.dlq_act:purge",
    "export": "celery_idem.cli.dlq_move:export",
    "import": "celery_idem.cli.dlq_move:import_letters",
    "collect": "celery_idem.cli.dlq_move:collect",
}


class LazyGroup(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(name="dlq", cls=LazyGroup)
@click.pass_context
@handle_preload_options
def dlq(ctx: Any) -> None:
    """Dead letters: understand them, mend them, send them again."""
