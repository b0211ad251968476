"""System checks: what ``manage.py check`` says about settings, tasks and databases.

=================== ===========================================================================
celery_idem.IDEM…   what the doctor finds (``manage.py idem check``) without asking servers or
                    reading the project's source: errors and warnings, by the doctor's ids
celery_idem.E002    the database can't keep records
celery_idem.E004    the tables are missing (``check --database default``)
celery_idem.W001    records are kept in SQLite
celery_idem.W002    the database's character set can't keep every key
=================== ===========================================================================
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

from celery import current_app
from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from celery_idem.binding import binding_of
from celery_idem.core.errors import ConfigError
from celery_idem.django.connections import VENDORS
from celery_idem.doctor.checks import CHECKS
from celery_idem.doctor.finding import Severity
from celery_idem.doctor.project import Project
from celery_idem.doctor.runner import Found, chosen, run

#: Celery runs Django's checks when it imports tasks, and a check of tasks imports them.
_importing = threading.local()

_KEEPS_IN_DATABASE = ("django", "tiered")


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
    return [_message(found) for found in report.at_least(Severity.WARNING)]


@register("celery_idem")
def check_store(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """The database that keeps the records, where one does."""
    binding = binding_of(current_app)
    try:
        return _check_store(binding.settings.store)
    except (ConfigError, TypeError):
        return []  # the doctor says it


def _message(found: Found) -> CheckMessage:
    finding = found.finding
    kind = Error if found.severity is Severity.ERROR else Warning
    text = f"{finding.message} ({finding.arithmetic})" if finding.arithmetic else finding.message
    return kind(
        text, hint=finding.remedy, obj=finding.task or None, id=f"celery_idem.{found.check.id}"
    )


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
