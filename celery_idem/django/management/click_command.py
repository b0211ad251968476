"""A Click group as a Django command, so that ``manage.py`` and ``celery -A proj`` are one code."""

from __future__ import annotations

import argparse
import importlib
from types import SimpleNamespace
from typing import Any

import click
from celery import current_app
from django.core.management.base import BaseCommand, CommandError

from celery_idem.core.errors import IdemError


class ClickCommand(BaseCommand):
    """``group``: "module:attribute" of the Click group; loaded when the command is called.

    Works on the current Celery app: the project's, where its package imports it as Celery's guide
    for Django says.
    """

    group = ""

    def run_from_argv(self, argv: list[str]) -> None:
        """The words after the command's name go to Click as they are, ``--help`` too."""
        try:
            self._main(argv[2:], f"{argv[0]} {argv[1]}")
        except CommandError as error:
            if str(error):
                self.stderr.write(f"Error: {error}")
            raise SystemExit(error.returncode) from error

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def handle(self, *args: Any, **options: Any) -> None:
        self._main([*args, *options.get("words", ())], self.group.rpartition(":")[2])

    def _main(self, words: list[str], name: str) -> None:
        module, _, attribute = self.group.partition(":")
        group: click.Command = getattr(importlib.import_module(module), attribute)
        app: Any = current_app
        try:
            # Click returns what a command ends with, where it does not end the process itself.
            code = group.main(
                args=words, prog_name=name, standalone_mode=False, obj=SimpleNamespace(app=app)
            )
        except click.ClickException as error:
            raise CommandError(error.format_message(), returncode=error.exit_code) from error
        except IdemError as error:
            raise CommandError(str(error)) from error
        except click.Abort as error:
            raise CommandError("aborted") from error
        if isinstance(code, int) and code:
            raise CommandError("", returncode=code)
