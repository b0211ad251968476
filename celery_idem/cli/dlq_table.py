"""Tables that fit the terminal: whole ids, and what is least needed goes first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import click


@dataclass(frozen=True, slots=True)
class Table:
    """What to show. ``rows`` are for programs (piped, whole), ``seen`` for people: by default the
    same. ``wide`` is the column that may be cut; ``drop`` names those that may go where the
    terminal is narrow, the first one first."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    seen: Sequence[Sequence[str]] | None = None
    title: str = ""
    wide: str = ""
    drop: tuple[str, ...] = ()


#: Columns of numbers.
_RIGHT = ("times", "letters", "seconds left")
#: Characters that the wide column keeps before another one is dropped.
LEAST_WIDE = 24
#: Characters that rich puts around a cell, and at the end of a line.
_AROUND, _AT_THE_END = 3, 1


def on_terminal() -> bool:
    """Whether a person looks at the output."""
    return sys.stdout.isatty()


def show(table: Table) -> None:
    """Print it: fitted on a terminal, tab-separated and whole when piped."""
    if on_terminal():
        try:
            _on_terminal(table)
            return
        except ImportError:
            pass  # pip install celery-idem[cli]
    click.echo("\t".join(table.columns))
    for row in table.rows:
        click.echo("\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in row))


def when(at_ms: int) -> str:
    """Local time, to the second."""
    if not at_ms:
        return ""
    return datetime.fromtimestamp(at_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def when_short(at_ms: int) -> str:
    """The same for a narrow column: the date of today is left out."""
    if not at_ms:
        return ""
    at = datetime.fromtimestamp(at_ms / 1000)
    today = at.date() == datetime.now().date()
    return at.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")


def fitted(table: Table, width: int) -> tuple[Table, list[int]]:
    """The columns that a line of ``width`` characters has room for, and how wide each is.

    >>> row = ["a" * 20, "low", "b" * 90]
    >>> narrow = Table(["id", "lane", "error"], [row], wide="error", drop=("lane",))
    >>> [(table.columns, widths) for table, widths in (fitted(narrow, 70), fitted(narrow, 50))]
    [(['id', 'lane', 'error'], [20, 4, 36]), (['id', 'error'], [20, 23])]
    """
    rows = table.rows if table.seen is None else table.seen
    table = replace(table, columns=list(table.columns), seen=[list(row) for row in rows])
    while True:
        widths = _natural(table)
        excess = sum(widths) + _AROUND * len(widths) + _AT_THE_END - width
        at = list(table.columns).index(table.wide) if table.wide else -1
        if excess <= 0:
            return table, widths
        spare = max(widths[at] - LEAST_WIDE, 0) if at >= 0 else 0
        dropped = next((it for it in table.drop if it in table.columns), None)
        if excess > spare and dropped is not None:
            table = _without(table, dropped)
            continue
        if at >= 0:
            widths[at] = max(widths[at] - excess, 1)
        return table, widths


def _natural(table: Table) -> list[int]:
    rows = [table.columns, *(table.seen or ())]
    return [max(len(row[at]) for row in rows) for at in range(len(table.columns))]


def _without(table: Table, column: str) -> Table:
    at = list(table.columns).index(column)
    columns = [it for it in table.columns if it != column]
    return replace(table, columns=columns, seen=[[*r[:at], *r[at + 1 :]] for r in table.seen or ()])


def _on_terminal(table: Table) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console()
    rows = table.rows if table.seen is None else table.seen
    clean = [[cell.replace("\n", " ") for cell in row] for row in rows]
    table, widths = fitted(replace(table, seen=clean), console.width)
    shown = RichTable(title=table.title or None, title_justify="left", box=SIMPLE_HEAD,
                      header_style="bold", show_edge=False)  # fmt: skip
    for column, width in zip(table.columns, widths, strict=True):
        right = column in _RIGHT
        shown.add_column(
            column, width=width, no_wrap=True, overflow="ellipsis",
            justify="right" if right else "left",
        )  # fmt: skip
    for row in table.seen or ():
        shown.add_row(*(Text(cell) for cell in row))
    console.print(shown, overflow="ignore", crop=False)
