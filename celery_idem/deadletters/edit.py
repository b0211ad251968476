"""Other arguments for a letter: as JSON, checked against the signature, the first ones kept."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kombu.serialization import dumps, loads

from celery_idem.core.errors import IdemError
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import READABLE, Attempt, Letter, Message
from celery_idem.deadletters.replay import whoami
from celery_idem.deadletters.tasks import task_named
from celery_idem.delivery import FINGERPRINT_HEADER, KEY_HEADER, record_key
from celery_idem.task import IdempotentTask


class NotEditable(IdemError, ValueError):
    """The letter's arguments can't be read or written, or do not fit the task."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What would change."""

    letter: Letter
    message: Message
    old_key: str
    new_key: str
    diff: str  #: unified, of the arguments as JSON


def arguments_of(message: Message) -> tuple[list[Any], dict[str, Any], Any]:
    """args, kwargs, and what else the body holds. Raises :class:`NotEditable`."""
    if message.content_type not in READABLE:
        raise NotEditable(f"arguments of content type {message.content_type!r} are not read")
    try:
        args, kwargs, embed = loads(
            message.body, message.content_type, message.content_encoding, accept=READABLE
        )
        return list(args), dict(kwargs), embed
    except Exception as error:
        raise NotEditable(f"the arguments can't be read: {error}") from error


def with_values(
    app: Any, letter: Letter, values: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The letter's arguments with other values for those of these names, wherever they stand.

    Raises :class:`NotEditable` for a name that the task does not have, or a task that this app does
    not know.
    """
    task = task_named(app, letter.task)
    if task is None:
        raise NotEditable(f"{letter.task or 'no task'} is unknown here: give all its arguments")
    args, kwargs, _ = arguments_of(letter.message)
    parameters = inspect.signature(task.run).parameters
    places = [
        it.name
        for it in parameters.values()
        if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD)
    ]
    for name, value in values.items():
        if name not in parameters:
            raise NotEditable(
                f"{task.name} has no argument {name!r}; it has {', '.join(parameters) or 'none'}"
            )
        if name in places[: len(args)] and name not in kwargs:
            args[places.index(name)] = value
        else:
            kwargs[name] = value
    return args, kwargs


def prepare(
    app: Any,
    letter: Letter,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Edit:
    """Work the edit out and change nothing. Raises :class:`NotEditable`."""
    old_args, old_kwargs, embed = arguments_of(letter.message)
    new_args = old_args if args is None else list(args)
    new_kwargs = old_kwargs if kwargs is None else dict(kwargs)
    task = task_named(app, letter.task)
    if task is not None:
        _check(task, new_args, new_kwargs)
    serializer = {"application/json": "json", "application/x-msgpack": "msgpack"}.get(
        letter.message.content_type, "yaml"
    )
    content_type, encoding, body = dumps((new_args, new_kwargs, embed), serializer=serializer)
    # A retry with other arguments carries the first ones' fingerprint; these are new ones.
    headers = {k: v for k, v in letter.message.headers.items() if k != FINGERPRINT_HEADER}
    headers["argsrepr"], headers["kwargsrepr"] = repr(tuple(new_args)), repr(new_kwargs)
    message = replace(
        letter.message,
        body=body.encode() if isinstance(body, str) else body,
        content_type=content_type,
        content_encoding=encoding,
        headers=headers,
    )
    new_key = _key(task, letter, headers, new_args, new_kwargs)
    return Edit(
        letter, message, letter.key, new_key, _diff(old_args, old_kwargs, new_args, new_kwargs)
    )


def save(app: Any, edit: Edit, by: str = "") -> bool:
    """Store the edit; the message as it came stays beside it. ``False``: the letter is gone."""
    detail = f"key {edit.old_key} -> {edit.new_key}" if edit.new_key != edit.old_key else "same key"
    attempt = Attempt(0, "edited", by or whoami(), detail)
    return letters_of(app).edit(edit.letter.id, edit.message, edit.new_key, attempt)


def _check(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        inspect.signature(task.run).bind(*args, **kwargs)
    except TypeError as error:
        raise NotEditable(f"{task.name} does not take these arguments: {error}") from error


def _key(
    task: Any, letter: Letter, headers: Mapping[str, Any], args: list[Any], kwargs: dict[str, Any]
) -> str:
    if not isinstance(task, IdempotentTask) or KEY_HEADER in headers:
        return letter.key
    try:
        return record_key(task, task._terms, letter.task_id, headers, args, kwargs)
    except IdemError as error:
        raise NotEditable(f"no key can be made of these arguments: {error}") from error


def _diff(*sides: Any) -> str:
    old_args, old_kwargs, new_args, new_kwargs = sides
    return "\n".join(
        difflib.unified_diff(
            _pretty(old_args, old_kwargs), _pretty(new_args, new_kwargs), "before", "after",
            lineterm="",
        )
    )  # fmt: skip


def _pretty(args: Any, kwargs: Any) -> list[str]:
    shown = {"args": args, "kwargs": kwargs}
    return json.dumps(shown, indent=2, default=repr, ensure_ascii=False).split("\n")
