"""Groups of commands: imported when they are called, and helpful with a typo."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click


class NearestGroup(click.Group):
    """Names the nearest command for one that there is not."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], known, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"There is {', '.join(known)}."
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx=ctx) from error


class LazyGroup(NearestGroup):
    """``places``: command → "module:attribute". A module is imported when its command is called, so
    that ``--help`` of one costs only that one. They are listed as they are written."""

    def __init__(self, *args: Any, places: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command
