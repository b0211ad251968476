"""Errors of this package are said in a sentence, whatever command they come out of.

Commands of ours say them by :func:`told`. Out of Celery's own (``worker``, ``beat``, ``call``) they
would come under a trace of Celery's code; :func:`tell_those_of_celery` says those. It is called
when Celery loads our commands, as it does whenever it is started from a shell.
"""

from __future__ import annotations

import logging
import sys
import sysconfig
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any

import click
from celery import _state
from celery.bin.base import CLIContext

from celery_idem.core.errors import ConfigError, IdemError

logger = logging.getLogger("celery_idem")

#: Exit code when the app can't be imported, as Celery has it.
NOT_IMPORTED = 2

#: Loggers in which Celery says why a worker, or beat, ends.
_WHERE_IT_ENDS = ("celery.worker", "celery.beat")

#: Whose lines say nothing about where a project is wrong: ours, and what is installed.
_NOT_THE_PROJECT = (
    str(Path(__file__).parents[1]),
    *{sysconfig.get_path(it) for it in ("stdlib", "purelib", "platlib")},
    "<frozen ",
)


def told(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose errors of this package are said, not raised; its exit code is 1 then."""

    @wraps(command)
    def inner(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except IdemError as error:
            missing = no_app() if isinstance(error, ConfigError) else ""
            raise click.ClickException(f"{error}. {missing}" if missing else str(error)) from error

    return inner


def no_app() -> str:
    """What a person has forgotten, where Celery had to make an app up; else nothing."""
    context = click.get_current_context(silent=True)
    obj = context.obj if context is not None else None
    app: Any = getattr(obj, "app", None)
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    # celery/_state.py names it so; Celery's fixup for Django makes the project's own the default
    made_up = app is getattr(_state, "default_app", None) and getattr(app, "main", "") == "default"
    if not made_up:
        return ""
    if isinstance(obj, CLIContext):
        return "No app was given: celery -A proj …"
    return "This project has no Celery app: import it in its __init__.py, as Celery's guide says"


def tell_those_of_celery() -> None:
    """From now on our errors that come out of one of Celery's commands are a sentence.

    Any other error, and ours in a program that runs no command, is shown as before.
    """
    before = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        ours = ours_in(error)
        if ours is None or not _is_of_a_command(trace):
            before(kind, error, trace)
            return
        say(ours)

    sys.excepthook = excepthook
    for name in _WHERE_IT_ENDS:
        logging.getLogger(name).addFilter(_without_our_trace)
    _tell_those_of_an_import()


def _without_our_trace(record: logging.LogRecord) -> bool:
    """What the broker refuses once it is connected ends a worker, too: Celery logs it as
    "Unrecoverable error", with a trace that says nothing of a setting."""
    ours = ours_in(record.exc_info[1]) if record.exc_info else None
    if ours is not None and record.levelno >= logging.CRITICAL:
        record.msg, record.args, record.exc_info = "%s", (str(ours),), None
    return True


def _tell_those_of_an_import() -> None:
    # Celery puts the trace into its own message: celery/bin/celery.py, "While trying to load…"
    commands: Any = sys.modules.get("celery.bin.celery")
    find = getattr(commands, "find_app", None)
    if find is None:
        return

    @wraps(find)
    def find_app(*args: Any, **options: Any) -> Any:
        try:
            return find(*args, **options)
        except Exception as error:
            ours = ours_in(error)
            if ours is None:
                raise
            say(ours)
            raise SystemExit(NOT_IMPORTED) from error

    commands.find_app = find_app


def say(error: IdemError) -> None:
    """On stderr; and where the command has a log file, there too: nobody reads the stderr of a
    worker that runs in the background."""
    place = place_of(error)
    text = f"{error}\n({place})" if place else str(error)
    if any(isinstance(it, logging.FileHandler) for it in logging.getLogger().handlers):
        logger.critical("%s", text)
    click.echo(f"Error: {text}", err=True)


def ours_in(error: BaseException | None) -> IdemError | None:
    """The error of this package that this one is, or passes on (``Couldn't import 'proj': …``)."""
    seen: list[BaseException] = []
    while error is not None and not isinstance(error, IdemError):
        seen.append(error)
        cause = error.__cause__ or error.__context__
        if cause is None or cause in seen or str(cause) not in str(error):
            return None  # "raise error from error" is a ring
        error = cause
    return error


def place_of(error: BaseException) -> str | None:
    """The last line of the project on the way to the error, where there is one."""
    place, trace = None, error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        file = frame.f_code.co_filename
        if frame.f_globals.get("__name__") != "__main__" and not file.startswith(_NOT_THE_PROJECT):
            place = f"{file}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _is_of_a_command(trace: TracebackType | None) -> bool:
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).startswith("celery.bin."):
            return True
        trace = trace.tb_next
    return False
