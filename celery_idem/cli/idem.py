"""``celery -A proj idem``: look at keys, free and revoke them, watch lanes, check a project."""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import handle_preload_options

from celery_idem.cli.lazy import LazyGroup
from celery_idem.cli.told import tell_those_of_celery

# ``celery control`` and ``inspect`` know the commands that are registered when they start
from celery_idem.deadletters import breaker as breaker
from celery_idem.doctor import clock as clock
from celery_idem.lanes import control as control

#: command → "module:attribute"
COMMANDS: dict[str, str] = {
    "show": "celery_idem.cli.records:show",
    "list": "celery_idem.cli.records:list_records",
    "release": "celery_idem.cli.records:release",
    "revoke": "celery_idem.cli.records:revoke",
    "prune": "celery_idem.cli.records:prune",
    "stats": "celery_idem.cli.records:stats",
    "lanes": "celery_idem.cli.lanes:lanes",
    "simulate": "celery_idem.cli.lanes:simulate",
    "broker": "celery_idem.cli.broker:broker",
    "check": "celery_idem.cli.check:check",
    "tune": "celery_idem.cli.tune:tune",
}

# Celery loads this module for each of its commands
tell_those_of_celery()


@click.group(name="idem", cls=LazyGroup, places=COMMANDS)
@click.pass_context
@handle_preload_options
def idem(ctx: Any) -> None:
    """Idempotency keys, lanes and checks of celery_idem. Dead letters: celery -A proj dlq."""
