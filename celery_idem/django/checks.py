"""System checks: what ``manage.py check`` says about settings, tasks and databases.

=================== ===========================================================================
celery_idem.E001    ``CELERY_IDEM`` has a wrong or unknown setting, or no store can be chosen
celery_idem.E002    the database can't keep records
celery_idem.E003    an idempotent task can't keep its promise (with the arithmetic)
celery_idem.E004    the tables are missing (``check --database default``)
celery_idem.W001    records are kept in SQLite
celery_idem.W002    the database's character set can't keep every key
=================== ===========================================================================
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from celery import current_app
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from celery_idem.binding import binding_of
from celery_idem.core.errors import ConfigError, IdemError
from celery_idem.deadletters.choose import LetterSettings, open_letters
from celery_idem.django.connections import VENDORS
from celery_idem.lanes.routing import lanes_of
from celery_idem.stores.choose import open_store

#: Celery runs Django's checks when it imports tasks, and a check of tasks imports them.
_importing = threading.local()

_KEEPS_IN_DATABASE = ("django", "tiered")


@register("celery_idem")
def check_settings(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """``CELERY_IDEM``, read as a worker reads it, down to lanes and dead letters; and the stores
    that it names are opened, which connects nothing."""
    binding = binding_of(current_app)
    wrong = _wrong(lambda: binding.settings)
    if not wrong:
        settings = binding.settings
        wrong += _wrong(lambda: lanes_of(settings))
        wrong += _wrong(lambda: open_store(binding.surroundings, 0).close())
        wrong += _wrong(
            lambda: open_letters(
                binding.surroundings, LetterSettings.from_dict(settings.dead_letters), 0
            ).close()
        )
    return wrong or _check_store(binding.settings.store)


@register("celery_idem")
def check_tasks(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """The terms of every idempotent task: a retention shorter than twice its retry window is seen
    here and not by a worker at night."""
    from celery_idem.task import IdempotentTask, is_celerys_own

    if getattr(_importing, "now", False):
        return []
    found: list[CheckMessage] = []
    app = current_app
    _importing.now = True
    try:
        app.loader.import_default_modules()
        tasks = list(app.tasks.values())
    except IdemError as error:
        return [Error(str(error), id="celery_idem.E003")]
    finally:
        _importing.now = False
    if _wrong(lambda: binding_of(app).settings):
        return []  # said once, above
    for task in tasks:
        if not isinstance(task, IdempotentTask) or is_celerys_own(task.name):
            continue
        try:
            task._terms  # noqa: B018 - worked out here
        except ConfigError as error:
            found.append(Error(str(error), obj=task.name, id="celery_idem.E003"))
    return found


@register(Tags.database)
def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """The tables are there, in every database that is asked about and keeps records."""
    from celery_idem.django import models

    needed = (
        models.KeyRecord,
        models.KeyStep,
        models.InboxEntry,
        models.DeadLetter,
        models.DeadLetterTrail,
    )
    found: list[CheckMessage] = []
    if _about_to_migrate():
        return found
    for alias in databases or ():
        if alias != DEFAULT_DB_ALIAS:
            continue  # the inbox of another database is its user's choice
        try:
            tables = set(connections[alias].introspection.table_names())
        except DatabaseError:
            continue  # Django's own checks say that it can't be reached
        missing = [m._meta.db_table for m in needed if m._meta.db_table not in tables]
        if missing:
            found.append(
                Error(
                    f"the database {alias!r} lacks the tables {', '.join(missing)}",
                    hint=f"manage.py migrate celery_idem --database {alias}",
                    id="celery_idem.E004",
                )
            )
    return found


def _wrong(look: Callable[[], object]) -> list[CheckMessage]:
    """What is said of a setting that can't be read."""
    try:
        look()
    except (ConfigError, TypeError) as error:
        hint = "CELERY_IDEM is a dict, for example {'store': 'django', 'lease_s': 30}."
        return [Error(str(error), hint=hint, id="celery_idem.E001")]
    return []


def _about_to_migrate() -> bool:
    """``migrate`` runs the checks of its database first, and stops at an error: it would never
    make the tables whose absence is one. Nothing tells a check who asks, but the stack."""
    from django.core.management.commands.migrate import Command

    frame = sys._getframe().f_back
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), Command):
            return True
        frame = frame.f_back
    return False


def _check_store(store: str | None) -> list[CheckMessage]:
    if store not in _KEEPS_IN_DATABASE:
        return []
    vendor = connections[DEFAULT_DB_ALIAS].vendor
    if vendor not in VENDORS:
        return [
            Error(
                f"records can't be kept in the default database, which is {vendor}",
                hint="Use PostgreSQL, MariaDB, MySQL or SQLite, or keep records in Redis: "
                "CELERY_IDEM = {'store': 'redis://…'}.",
                id="celery_idem.E002",
            )
        ]
    if vendor == "sqlite":
        return [
            Warning(
                "records are kept in SQLite, which has one writer at a time",
                hint="Good for trying out; for many workers use PostgreSQL, MariaDB or Redis.",
                id="celery_idem.W001",
            )
        ]
    options = connections[DEFAULT_DB_ALIAS].settings_dict.get("OPTIONS") or {}
    charset = str(options.get("charset", "utf8mb4"))
    if vendor == "mysql" and charset.lower() != "utf8mb4":
        return [
            Warning(
                f"the connection's character set {charset} can't keep every key",
                hint="Set OPTIONS['charset'] to 'utf8mb4'.",
                id="celery_idem.W002",
            )
        ]
    return []
