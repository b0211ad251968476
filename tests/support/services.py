"""Which of the shared services answer here, and where: RabbitMQ, PostgreSQL, MariaDB."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

RABBITMQ_URL = os.environ.get("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")
POSTGRES_URL = os.environ.get("POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
MARIADB_URL = os.environ.get("MARIADB_URL", "mysql://root@127.0.0.1:3306/test")

CONNECT_S = 3.0


def answers(url: str, default_port: int) -> bool:
    """Whether somebody takes connections at the URL's host and port."""
    parts = urlsplit(url)
    place = (parts.hostname or "127.0.0.1", parts.port or default_port)
    with contextlib.suppress(OSError), socket.create_connection(place, CONNECT_S):
        return True
    return False


@functools.cache
def missing_rabbitmq() -> str | None:
    """Why RabbitMQ can't be used; None when it can."""
    if not answers(RABBITMQ_URL, 5672):
        return f"no RabbitMQ answers at {_bare(RABBITMQ_URL)} (set RABBITMQ_URL)"
    return None


@functools.cache
def missing_postgres() -> str | None:
    """Why PostgreSQL can't be used; None when it can."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed"
    import psycopg

    try:
        psycopg.connect(POSTGRES_URL, connect_timeout=int(CONNECT_S)).close()
    except psycopg.Error as error:
        return f"no PostgreSQL at {_bare(POSTGRES_URL)} (set POSTGRES_URL): {error}".strip()
    return None


@functools.cache
def missing_mariadb() -> str | None:
    """Why MariaDB can't be used; None when it can."""
    if importlib.util.find_spec("pymysql") is None:
        return "PyMySQL is not installed"
    import pymysql

    parts = urlsplit(MARIADB_URL)
    try:
        pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=parts.username or "root",
            password=parts.password or "",
            connect_timeout=int(CONNECT_S),
        ).close()
    except pymysql.MySQLError as error:
        return f"no MariaDB at {_bare(MARIADB_URL)} (set MARIADB_URL): {error}"
    return None


#: marker of a test → the reason why what it needs is missing
MISSING: dict[str, Callable[[], str | None]] = {
    "rabbitmq": missing_rabbitmq,
    "postgres": missing_postgres,
    "mariadb": missing_mariadb,
}


def _bare(url: str) -> str:
    """The URL without its password, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port or ''}{parts.path}"
