"""``celery -A proj idem``: look at keys, free and revoke them, watch lanes, check a project."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import click
from celery.bin.base import handle_preload_options

from celery_idem.cli.told import tell_those_of_celery

# ``celery control`` and ``inspect`` know the commands that are registered when they start
from celery_idem.deadletters import breaker as breaker
from celery_idem.doctor import clock as clock
from celery_idem.lanes import control as control

#: command → "module:attribute"; a module is loaded when its command is called.
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


class LazyGroup(click.Group):
    """Commands that are imported when they are called: ``--help`` of one costs only that one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        present = [name for name, place in COMMANDS.items() if _exists(place)]
        return sorted({*super().list_commands(ctx), *present})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None or not _exists(place):
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


def _exists(place: str) -> bool:
    return importlib.util.find_spec(place.partition(":")[0]) is not None


@click.group(name="idem", cls=LazyGroup)
@click.pass_context
@handle_preload_options
def idem(ctx: Any) -> None:
    """Idempotency keys, lanes and checks of celery_idem."""
