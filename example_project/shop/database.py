"""``DATABASE_URL`` as an entry of ``DATABASES``, without a package for it."""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import django
from django.core.exceptions import ImproperlyConfigured

#: scheme → Django's backend
BACKENDS = {
    "sqlite": "sqlite3",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
#: A transaction of SQLite that begins by reading can't always write later: it is to take the write
#: lock at once, which Django can say since 5.1.
IMMEDIATE = django.VERSION >= (5, 1)
#: Seconds that SQLite waits for its one writer.
SQLITE_PATIENCE_S = 30


def database(url: str) -> dict[str, Any]:
    """``sqlite:///relative/path``, ``sqlite:////absolute/path``, ``postgresql://user:password@host/name``
    or ``mysql://…``; what follows a ``?`` becomes ``OPTIONS``.

    Raises ``ImproperlyConfigured`` for another scheme, or without a name.
    """
    parts = urlsplit(url)
    backend = BACKENDS.get(parts.scheme)
    name = unquote(parts.path[1:])
    if backend is None or not name:
        raise ImproperlyConfigured(
            f"DATABASE_URL begins with {parts.scheme + '://' if parts.scheme else url!r} and names "
            f"the database {name!r}: give {', '.join(BACKENDS)}, a host and a name, for example "
            "sqlite:///shop.sqlite3 or postgresql://shop:secret@localhost/shop"
        )
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    entry: dict[str, Any] = {"ENGINE": f"django.db.backends.{backend}", "NAME": name}
    if backend == "sqlite3":
        if IMMEDIATE:
            options.setdefault("transaction_mode", "IMMEDIATE")
        return {**entry, "OPTIONS": {"timeout": SQLITE_PATIENCE_S, **options}}
    if backend == "mysql":
        _pymysql_where_mysqlclient_is_not()
        # Django before 5.0 speaks three-byte UTF-8 to MariaDB unless it is told
        options.setdefault("charset", "utf8mb4")
    return {
        **entry,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": options,
    }


def _pymysql_where_mysqlclient_is_not() -> None:
    """PyMySQL can stand in for mysqlclient, and needs no compiler."""
    try:
        import MySQLdb  # noqa: F401
    except ImportError:
        with contextlib.suppress(ImportError):  # else Django says what is missing
            import pymysql

            pymysql.version_info = (2, 2, 7, "final", 0)  # type: ignore[assignment]
            pymysql.install_as_MySQLdb()
