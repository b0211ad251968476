"""Letters as tables, pages and JSON. Colours and borders on a terminal, plain text when piped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import click

from celery_idem.cli.dlq_table import Table, on_terminal, show, when, when_short
from celery_idem.deadletters.base import Group
from celery_idem.deadletters.describe import STATES, died
from celery_idem.deadletters.letter import Attempt, Letter, Message

__all__ = ["on_terminal", "show", "when"]


def letter_row(letter: Letter) -> list[str]:
    """One line of ``list``."""
    return [
        letter.id,
        when(letter.last_died_ms),
        letter.reason.value,
        letter.task,
        letter.lane,
        str(letter.times),
        f"{letter.fault.error_type}: {letter.fault.message}".strip(": "),
    ]


LETTER_COLUMNS = ("id", "died", "reason", "task", "lane", "times", "error")
GROUP_COLUMNS = ("group", "letters", "first", "last", "error", "raised in", "example")


def letters_table(title: str, letters: Sequence[Letter]) -> None:
    """``list``."""
    seen = [
        [
            it.id, when_short(it.last_died_ms), it.reason.value, it.task, it.lane, str(it.times),
            f"{short_type(it.fault.error_type)}: {it.fault.message}".strip(": "),
        ]
        for it in letters
    ]  # fmt: skip
    rows = [letter_row(it) for it in letters]
    drop = ("times", "lane", "reason")
    show(Table(LETTER_COLUMNS, rows, seen, title, "error", drop))


def groups_table(title: str, groups: Sequence[Group]) -> None:
    """``groups``."""
    seen = [
        [
            it.group, str(it.count), when_short(it.first_ms), when_short(it.last_ms),
            short_type(it.error_type), it.place, it.example,
        ]
        for it in groups
    ]  # fmt: skip
    rows = [group_row(it) for it in groups]
    show(Table(GROUP_COLUMNS, rows, seen, title, "raised in", ("first", "last")))


def group_row(group: Group) -> list[str]:
    """One line of ``groups``."""
    return [
        group.group,
        str(group.count),
        when(group.first_ms),
        when(group.last_ms),
        group.error_type,
        group.place,
        group.example,
    ]


def many(count: int, word: str) -> str:
    """
    >>> many(1, "fault"), many(3, "fault")
    ('1 fault', '3 faults')
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def short_type(error_type: str) -> str:
    """An error's type without its module.

    >>> short_type("shop.models.Product.DoesNotExist"), short_type("OSError")
    ('Product.DoesNotExist', 'OSError')
    """
    parts = error_type.split(".")
    first = next((at for at, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    return ".".join(parts[first:])


def page(letter: Letter, arguments: Any, state: str) -> None:
    """Everything that a person needs to judge one letter."""
    fault = letter.fault
    lines = [
        ("letter", letter.id),
        ("reason", f"{letter.reason.value}, {STATES[letter.state]}"),
        ("task", f"{letter.task} [{letter.task_id}]"),
        ("key", f"{letter.key} ({state})" if letter.key else "none"),
        ("queue", letter.message.queue + (f" (lane {letter.lane})" if letter.lane else "")),
        ("died", died(letter, when)),
        ("counted", f"{letter.retries} retries, {letter.crashes} crashes, fence {letter.fence}"),
        ("worker", letter.worker),
        ("error", f"{fault.error_type}: {fault.message}".strip(": ")),
        ("raised in", f"{fault.place} (group {fault.group})"),
        ("arguments", arguments if isinstance(arguments, str)
         else json.dumps(arguments, default=repr, ensure_ascii=False)),
        ("replayable", "yes" if letter.replayable else "no"),
    ]  # fmt: skip
    for name, value in lines:
        click.echo(f"{click.style(f'{name:>10}', bold=True)}  {value}")
    if letter.original is not None:
        click.echo(
            f"{'edited':>10}  the message as it came is kept ({len(letter.original.body)} B)"
        )
    click.echo(click.style("\nhistory", bold=True))
    for attempt in letter.history:
        click.echo(f"  {when(attempt.at_ms)}  {attempt.what}  {attempt.by}  {attempt.detail}")
    if fault.traceback:
        click.echo(click.style("\ntraceback", bold=True))
        click.echo(fault.traceback)


def as_dict(letter: Letter, arguments: Any = None) -> dict[str, Any]:
    """A letter in JSON; the schema is in docs/dead-letters.md."""
    fault = letter.fault
    shown: dict[str, Any] = {
        "id": letter.id,
        "reason": letter.reason.value,
        "state": letter.state.value,
        "task": letter.task,
        "task_id": letter.task_id,
        "key": letter.key,
        "lane": letter.lane,
        "queue": letter.message.queue,
        "error": {
            "type": fault.error_type,
            "message": fault.message,
            "place": fault.place,
            "group": fault.group,
        },
        "retries": letter.retries,
        "crashes": letter.crashes,
        "fence": letter.fence,
        "worker": letter.worker,
        "first_died": iso(letter.first_died_ms),
        "last_died": iso(letter.last_died_ms),
        "times": letter.times,
        "replayable": letter.replayable,
        "edited": letter.original is not None,
    }
    if arguments is not None:
        shown["arguments"] = arguments
    return shown


def whole_dict(letter: Letter, arguments: Any) -> dict[str, Any]:
    """The same with traceback, message and history."""
    return {
        **as_dict(letter, arguments),
        "traceback": letter.fault.traceback,
        "message": _message_dict(letter.message),
        "history": history_dicts(letter.history),
    }


def history_dicts(history: Sequence[Attempt]) -> list[dict[str, str]]:
    """A letter's trail."""
    return [
        {"at": iso(it.at_ms), "what": it.what, "by": it.by, "detail": it.detail} for it in history
    ]


def group_dict(group: Group) -> dict[str, Any]:
    """A group in JSON."""
    return {
        "group": group.group,
        "letters": group.count,
        "first": iso(group.first_ms),
        "last": iso(group.last_ms),
        "error": group.error_type,
        "place": group.place,
        "example": group.example,
    }


def iso(at_ms: int) -> str:
    """UTC, to the millisecond."""
    at = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message_dict(message: Message) -> Mapping[str, Any]:
    return {
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "headers": message.headers,
        "properties": message.properties,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "size": len(message.body),
    }


def dump(value: Any) -> None:
    """JSON on standard output."""
    click.echo(json.dumps(value, indent=2, default=repr, ensure_ascii=False))
