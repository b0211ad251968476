"""A record as a row, and the few statements about rows, in SQL that three databases read alike.

By hand rather than by the ORM, because a query of the ORM runs on a connection of
``django.db.connections``, which a store must not use (see :mod:`celery_idem.django.connections`).
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError
from django.db.models.constants import OnConflict

from celery_idem.core.record import Record, State
from celery_idem.django.models import KeyRecord, KeyStep, digest_of

#: The database's own time in microseconds since 1970, of the statement. In UTC throughout: a
#: session's time zone has an hour that comes twice a year.
CLOCK_US = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))",
    "sqlite": (
        "(CAST(strftime('%%s', 'now') AS INTEGER) * 1000000"
        " + CAST(substr(strftime('%%f', 'now'), 4) AS INTEGER) * 1000)"
    ),
}

#: Fields of the model that hold a field of the record of the same name.
_TEXTS = ("key", "owner", "fingerprint", "task_id")
_NUMBERS = (
    "fence", "lease_until_ms", "lease_ms", "retention_ms", "attempt", "runs", "crashes",
    "failures", "releases", "created_ms", "done_ms", "expires_ms",
)  # fmt: skip
_OTHERS = ("state", "revoked", "result", "settled", "published", "version", "step_count")
_FIELDS = (*_TEXTS, *_NUMBERS, *_OTHERS)

#: leaves room for as many writes again in 64 bits
_FIRST_VERSION_BITS = 62


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it was read: the record without its steps, and what the next write compares."""

    record: Record
    version: int
    step_count: int


def read(connection: Any, digests: Sequence[str]) -> tuple[int, dict[str, Row]]:
    """The database's time and the rows that exist, of one statement."""
    marks = ", ".join(["%s"] * len(digests))
    quote, table = connection.ops.quote_name, KeyRecord._meta.db_table
    columns = ", ".join(f"r.{quote(name)}" for name in ("digest", *_FIELDS))
    sql = (
        f"SELECT {CLOCK_US[connection.vendor]}, {columns} FROM (SELECT 1 AS one) o "
        f"LEFT JOIN {quote(table)} r ON r.{quote('digest')} IN ({marks})"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, list(digests))
        found = cursor.fetchall()
    return int(found[0][0]), {line[1]: row_of(line[2:]) for line in found if line[1] is not None}


def clock_ms(connection: Any) -> int:
    """The database's time in milliseconds."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {CLOCK_US[connection.vendor]}", [])
        return int(cursor.fetchone()[0]) // 1000


def insert(connection: Any, record: Record, step_count: int = 0) -> bool:
    """A new row; ``False`` when somebody else's is there already. Outside a transaction."""
    values = {"digest": digest_of(record.key), **_values(record), "step_count": step_count}
    # Not 1: a row that was deleted and is there again must not look like the one before it.
    values["version"] = random.getrandbits(_FIRST_VERSION_BITS)
    try:
        _execute(connection, _insert_sql(connection, KeyRecord, tuple(values)), values)
    except IntegrityError:
        return False
    return True


def update(connection: Any, seen: Row, record: Record, step_count: int) -> bool:
    """The row as it is now, if it is still the one that was seen."""
    values: dict[str, Any] = {**_values(record), "step_count": step_count}
    values["version"] = seen.version + 1
    quote = connection.ops.quote_name
    sets = ", ".join(f"{quote(name)} = %s" for name in values)
    sql = (
        f"UPDATE {quote(KeyRecord._meta.db_table)} SET {sets} "
        f"WHERE {quote('digest')} = %s AND {quote('version')} = %s"
    )
    return _execute(
        connection, sql, {**values, "_digest": digest_of(record.key), "_seen": seen.version}
    )


def delete(
    connection: Any,
    digests: Sequence[str],
    expired_at_ms: int | None = None,
    model: Any = KeyRecord,
) -> int:
    """Delete rows, only those past their time where one is given; returns how many."""
    quote = connection.ops.quote_name
    marks = ", ".join(["%s"] * len(digests))
    sql = f"DELETE FROM {quote(model._meta.db_table)} WHERE {quote('digest')} IN ({marks})"
    given: list[Any] = list(digests)
    if expired_at_ms is not None:
        sql += f" AND {quote('expires_ms')} > 0 AND {quote('expires_ms')} <= %s"
        given.append(expired_at_ms)
    with connection.cursor() as cursor:
        cursor.execute(sql, given)
        return int(cursor.rowcount)


def expired(connection: Any, model: Any, now_ms: int, limit: int) -> list[str]:
    """Digests of rows that are past their time, at most ``limit``, by the index."""
    quote = connection.ops.quote_name
    sql = (
        f"SELECT {quote('digest')} FROM {quote(model._meta.db_table)} "
        f"WHERE {quote('expires_ms')} > 0 AND {quote('expires_ms')} <= %s "
        f"ORDER BY {quote('expires_ms')} LIMIT %s"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [now_ms, limit])
        return [line[0] for line in cursor.fetchall()]


def put_step(connection: Any, key: str, name: str, value: bytes) -> None:
    """Write a step, or write over it."""
    values = {
        "digest": digest_of(key, name),
        "record_id": digest_of(key),
        "name": kept(name),
        "value": value,
    }
    suffix = connection.ops.on_conflict_suffix_sql(
        [KeyStep._meta.get_field("value")], OnConflict.UPDATE, ["value"], ["digest"]
    )
    _execute(connection, f"{_insert_sql(connection, KeyStep, tuple(values))} {suffix}", values)


def steps(connection: Any, digest: str) -> dict[str, bytes]:
    """All steps of a record."""
    quote = connection.ops.quote_name
    sql = (
        f"SELECT {quote('name')}, {quote('value')} FROM {quote(KeyStep._meta.db_table)} "
        f"WHERE {quote('record_id')} = %s"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [digest])
        return {_shown(name): bytes(value) for name, value in cursor.fetchall()}


def delete_steps(connection: Any, digests: Sequence[str]) -> None:
    """Delete all steps of these records."""
    quote = connection.ops.quote_name
    marks = ", ".join(["%s"] * len(digests))
    sql = f"DELETE FROM {quote(KeyStep._meta.db_table)} WHERE {quote('record_id')} IN ({marks})"
    with connection.cursor() as cursor:
        cursor.execute(sql, list(digests))


def search(connection: Any, contains: str, now_ms: int, limit: int) -> list[tuple[str, Row]]:
    """Rows that are not past their time and whose key contains the text, newest first."""
    quote = connection.ops.quote_name
    columns = ", ".join(quote(name) for name in ("digest", *_FIELDS))
    where = f"{quote('expires_ms')} > %s"
    given: list[Any] = [now_ms]
    if contains:
        where += f" AND {position_of(connection.vendor, quote('key'))} > 0"
        given.append(kept(contains))
    sql = (
        f"SELECT {columns} FROM {quote(KeyRecord._meta.db_table)} WHERE {where} "
        f"ORDER BY {quote('expires_ms')} DESC LIMIT %s"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [*given, limit])
        return [(line[0], row_of(line[1:])) for line in cursor.fetchall()]


def row_of(line: Sequence[Any]) -> Row:
    """The columns of :data:`_FIELDS` as a row."""
    given = dict(zip(_FIELDS, line, strict=True))
    result = given["result"]
    plain: dict[str, Any] = {name: given[name] for name in _NUMBERS}
    plain.update({name: _shown(given[name]) for name in _TEXTS})
    record = Record(
        **plain,
        state=State(given["state"]),
        revoked=bool(given["revoked"]),
        result=None if result is None else bytes(result),
        settled=frozenset(json.loads(given["settled"])),
        published=json.loads(given["published"]),
    )
    return Row(record, int(given["version"]), int(given["step_count"]))


def kept(text: str) -> str:
    """A text as it is kept: PostgreSQL can't keep a NUL."""
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def _shown(kept: str) -> str:
    """The inverse of :func:`kept`."""
    if "\\" not in kept:
        return kept
    return re.sub(r"\\(.)", lambda found: "\0" if found[1] == "0" else found[1], kept)


def _values(record: Record) -> dict[str, Any]:
    return {
        **{name: getattr(record, name) for name in _NUMBERS},
        **{name: kept(getattr(record, name)) for name in _TEXTS},
        "state": record.state.value,
        "revoked": record.revoked,
        "result": record.result,
        "settled": json.dumps(sorted(record.settled)),
        "published": json.dumps(dict(record.published)),
    }


def _execute(connection: Any, sql: str, values: Mapping[str, Any]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(sql, list(values.values()))
        return bool(cursor.rowcount == 1)


@functools.cache
def _insert_for(vendor: str, table: str, columns: tuple[str, ...]) -> str:
    marks = ", ".join(["%s"] * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"


def _insert_sql(connection: Any, model: Any, names: tuple[str, ...]) -> str:
    quote = connection.ops.quote_name
    return _insert_for(
        connection.vendor, quote(model._meta.db_table), tuple(quote(name) for name in names)
    )


def position_of(vendor: str, column: str) -> str:
    """Where a text is in a column, byte for byte: LIKE ignores case on two of the three."""
    if vendor == "postgresql":
        return f"strpos({column}, %s)"
    if vendor == "mysql":
        return f"INSTR({column}, CAST(%s AS BINARY))"
    return f"instr({column}, %s)"
