"""Databases for tests: made and migrated once a session, dropped at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import call_command
from django.db import connections

from tests.django import ready  # noqa: F401 - before anything that needs Django
from tests.support.services import MARIADB_URL, POSTGRES_URL

SQLITE = pytest.param("sqlite", id="sqlite")
POSTGRES = pytest.param("postgres", id="postgres", marks=pytest.mark.postgres)
MARIADB = pytest.param("mariadb", id="mariadb", marks=pytest.mark.mariadb)
#: what the fixture ``database`` takes
SERVERS = [POSTGRES, MARIADB]
ALL = [SQLITE, *SERVERS]


@contextmanager
def made(alias: str) -> Iterator[str]:
    """The alias's database exists and is migrated inside the block."""
    settings = connections[alias].settings_dict
    _create(alias, settings["NAME"])
    try:
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
        yield alias
    finally:
        connections[alias].close()
        _drop(alias, settings["NAME"])


def server_statement(vendor: str, statement: str) -> None:
    """Say something to a shared server, outside any database of ours."""
    if vendor == "postgresql":
        import psycopg

        with psycopg.connect(POSTGRES_URL, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]
        return
    import pymysql

    parts = urlsplit(MARIADB_URL)
    with (
        contextlib.closing(
            pymysql.connect(
                host=parts.hostname,
                port=parts.port or 3306,
                user=parts.username or "root",
                password=parts.password or "",
                autocommit=True,
            )
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)


def _create(alias: str, name: str) -> None:
    vendor = connections[alias].vendor
    if vendor == "sqlite":
        return
    _drop(alias, name)
    charset = " CHARACTER SET utf8mb4" if vendor == "mysql" else ""
    server_statement(vendor, f"CREATE DATABASE {name}{charset}")


def _drop(alias: str, name: str) -> None:
    vendor = connections[alias].vendor
    if vendor == "sqlite":
        for end in ("", "-journal", "-wal", "-shm"):
            Path(name + end).unlink(missing_ok=True)
    elif vendor == "postgresql":
        server_statement(vendor, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    else:
        server_statement(vendor, f"DROP DATABASE IF EXISTS {name}")


def emptied(alias: str) -> None:
    """No records, no inbox, no letters, no shop."""
    from celery_idem.django import models
    from tests.django.shop.models import Effect, Order

    letters = (models.DeadLetter, models.DeadLetterTrail)
    ours = (models.KeyStep, models.KeyRecord, models.InboxEntry, models.RunTime, *letters)
    for model in (*ours, Effect, Order):
        model.objects.using(alias).all().delete()


_FURTHER = "url-"


def alias_of(url: str) -> str:
    """A further alias, of this database, until the test ends."""
    from tests.django.settings import database

    alias = f"{_FURTHER}{url}"
    connections.databases[alias] = {**connections.databases["default"], **database(url)}
    return alias


#: what tests have put in the place of ``default``
_replaced: list[Any] = []


def forget_further() -> None:
    """After a test: no connection of it is open, and holds no lock where the next one empties a
    table. The aliases that it added are not there for those that come later: Celery has Django
    check every database when a worker starts, and theirs may be gone."""
    from celery_idem.django.connections import _pools

    while _replaced:
        _replaced.pop().close()
    connections.close_all()
    for pool in list(_pools):
        pool.close()
    for alias in [name for name in connections.databases if name.startswith(_FURTHER)]:
        connections[alias].close()
        del connections[alias]
        del connections.databases[alias]


def url_of(alias: str) -> str:
    """The URL of an alias, as ``tests/django/settings.py`` reads it."""
    from tests.django.settings import on_server, sqlite_file

    if alias == "sqlite":
        return sqlite_file("records")
    server = POSTGRES_URL if alias == "postgres" else MARIADB_URL
    return on_server(server, connections[alias].settings_dict["NAME"])


def as_default(alias: str, idem: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process ``default`` is that database, and ``CELERY_IDEM`` that dict, for the test."""
    from django.conf import settings

    connections["default"].close()
    monkeypatch.setitem(connections.databases, "default", connections.databases[alias])
    _replaced.append(connections.create_connection(alias))
    monkeypatch.setattr(connections._connections, "default", _replaced[-1])  # type: ignore[attr-defined]
    connections["default"].alias = "default"
    monkeypatch.setattr(settings, "CELERY_IDEM", idem)


def entries(alias: str) -> Any:
    """The inbox of a database."""
    from celery_idem.django.models import InboxEntry

    return InboxEntry.objects.using(alias)


_BLOCKED = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
    "AND datname = current_database() AND query LIKE %s",
    # innodb_trx is a cache that is not renewed while it is looked at more often than every 0.1 s
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = database() "
    "AND command = 'Query' AND info LIKE %s",
}


def wait_until_blocked(alias: str, statement: str = "INSERT%idem_inbox%") -> None:
    """Until a statement like this one waits for another's lock in this database."""
    from tests.support.waiting import wait_until

    def blocked() -> bool:
        with connections[alias].cursor() as cursor:
            cursor.execute(_BLOCKED[connections[alias].vendor], [statement])
            return bool(cursor.fetchone()[0])

    wait_until(blocked, what="a statement that waits for a lock")


_OTHERS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist "
    "WHERE db = %s AND id <> connection_id()",
}
_CUT = {"postgresql": "SELECT pg_terminate_backend(%s)", "mysql": "KILL %s"}


def other_connections(alias: str) -> list[int]:
    """Every other connection to the database, as the server knows it."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        cursor.execute(_OTHERS[connection.vendor], [connection.settings_dict["NAME"]])
        return [row[0] for row in cursor.fetchall()]


def cut_connections(alias: str) -> int:
    """End every other connection to the database, from the server's side; returns how many."""
    found = other_connections(alias)
    with connections[alias].cursor() as cursor:
        for each in found:
            cursor.execute(_CUT[connections[alias].vendor], [each])
    return len(found)
