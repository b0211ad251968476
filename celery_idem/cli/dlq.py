"""``celery -A proj dlq`` and ``manage.py dlq``: dead letters, from first look to replay.

Exit codes: 0 done · 1 not all of it (a letter that is not there, a canary that failed, letters
there with ``stats --fail-if-any``) or an error of this package · 2 wrong usage.
"""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import handle_preload_options

from celery_idem.cli.lazy import LazyGroup

#: command → "module:attribute"
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


@click.group(name="dlq", cls=LazyGroup, places=COMMANDS)
@click.pass_context
@handle_preload_options
def dlq(ctx: Any) -> None:
    """Dead letters: understand them, mend them, send them again."""
