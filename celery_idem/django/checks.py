"""System checks: what ``manage.py check`` says about settings, tasks and databases.

=================== ===========================================================================
celery_idem.IDEM…   what the doctor finds (``manage.py idem check``) without asking servers or
                    reading the project's source: errors and warnings, by the doctor's ids
celery_idem.E002    the database can't keep records
celery_idem.E004    the tables are missing (``check --database default``)
celery_idem.W001    records or dead letters are kept in SQLite
celery_idem.W002    the database's character set can't keep every key
celery_idem.W003    there, a transaction that reads before it writes fails when others have written
celery_idem.W004    some of the doctor's checks could not be made, and why
=================== ===========================================================================
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import django
from celery import current_app
from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from celery_idem.binding import binding_of
from celery_idem.core.errors import ConfigError
from celery_idem.deadletters.choose import letters_of
from celery_idem.django.connections import VENDORS
from celery_idem.django.letters import DjangoLetterStore
from celery_idem.django.store import DjangoStore
from celery_idem.doctor.checks import CHECKS
from celery_idem.doctor.finding import Severity
from celery_idem.doctor.project import Project
from celery_idem.doctor.runner import Found, Report, chosen, run
from celery_idem.stores.tiered import TieredStore

#: Celery runs Django's checks when it imports tasks, and a check of tasks imports them.
_importing = threading.local()

#: Since this version Django can be told how SQLite's transactions begin.
_TRANSACTION_MODE = (5, 1)
#: those that take the write lock when they begin
_LOCK_AT_ONCE = ("IMMEDIATE", "EXCLUSIVE")


@register("celery_idem")
def check_project(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """The doctor's checks that need no server and no source: a retention shorter than twice its
    retry window is seen here and not by a worker at night."""
    if getattr(_importing, "now", False):
        return []
    _importing.now = True
    try:
        report = run(Project(current_app), chosen(CHECKS, servers=False, source=False))
    finally:
        _importing.now = False
    return [*map(_message, report.at_least(Severity.WARNING)), *_not_made(report)]


@register("celery_idem")
def check_store(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """The database that keeps records or dead letters, where one does."""
    try:
        kept = _kept_in_database()
    except (ConfigError, TypeError):
        return []  # the doctor says it
    return _check_database(kept) if kept else []


def _kept_in_database() -> str:
    """``records``, ``dead letters``, both, or nothing."""
    kept = []
    if isinstance(binding_of(current_app).store, (DjangoStore, TieredStore)):
        kept.append("records")
    if isinstance(letters_of(current_app), DjangoLetterStore):
        kept.append("dead letters")
    return " and ".join(kept)


def _message(found: Found) -> CheckMessage:
    finding = found.finding
    kind = Error if found.severity is Severity.ERROR else Warning
    text = f"{finding.message} ({finding.arithmetic})" if finding.arithmetic else finding.message
    return kind(
        text, hint=finding.remedy, obj=finding.task or None, id=f"celery_idem.{found.check.id}"
    )


def _not_made(report: Report) -> list[CheckMessage]:
    """What could not be checked is not right by that. A setting that is wrong is said already."""
    said = any(found.check.id == "IDEM001" for found in report.found)
    reasons: dict[str, list[str]] = {}
    for it in report.unchecked:
        if not (said and it.by_settings):
            reasons.setdefault(it.reason, []).append(it.check.id)
    return [
        Warning(
            f"not checked: {', '.join(ids)}: {reason}",
            hint=f"manage.py idem check {' '.join(f'--only {it}' for it in ids)}",
            id="celery_idem.W004",
        )
        for reason, ids in reasons.items()
    ]


@register(Tags.database)
def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """The tables are there, in every database that is asked about and keeps records."""
    needed = [model._meta.db_table for model in apps.get_app_config("celery_idem").get_models()]
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
        missing = [table for table in needed if table not in tables]
        if missing:
            found.append(
                Error(
                    f"the database {alias!r} lacks the tables {', '.join(missing)}",
                    hint=f"manage.py migrate celery_idem --database {alias}",
                    id="celery_idem.E004",
                )
            )
    return found


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


def _check_database(kept: str) -> list[CheckMessage]:
    vendor = connections[DEFAULT_DB_ALIAS].vendor
    options = connections[DEFAULT_DB_ALIAS].settings_dict.get("OPTIONS") or {}
    if vendor not in VENDORS:
        return [
            Error(
                f"{kept} can't be kept in the default database, which is {vendor}",
                hint="Use PostgreSQL, MariaDB, MySQL or SQLite, or keep them in Redis: "
                "CELERY_IDEM = {'store': 'redis://…'}.",
                id="celery_idem.E002",
            )
        ]
    if vendor == "sqlite":
        return _check_sqlite(kept, options)
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


def _check_sqlite(kept: str, options: Mapping[str, Any]) -> list[CheckMessage]:
    found: list[CheckMessage] = [
        Warning(
            f"{kept} are kept in SQLite, which has one writer at a time",
            hint="Good for trying out; for many workers use PostgreSQL, MariaDB or Redis.",
            id="celery_idem.W001",
        )
    ]
    mode = str(options.get("transaction_mode") or "DEFERRED").upper()
    if django.VERSION >= _TRANSACTION_MODE and mode not in _LOCK_AT_ONCE:
        found.append(
            Warning(
                f"SQLite's transactions begin {mode}: one that reads and then writes fails at "
                f'once ("database is locked") when others write meanwhile, as workers do, whose '
                f"{kept} are kept there",
                hint="DATABASES['default']['OPTIONS'] = "
                "{'transaction_mode': 'IMMEDIATE', 'timeout': 20}",
                id="celery_idem.W003",
            )
        )
    return found
