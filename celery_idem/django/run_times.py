"""Run times in the database: a row for each task, lane, day and bucket, added to by everybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery_idem.core.histogram import RunCounts
from celery_idem.django.models import RunTime, digest_of

#: Rows of one statement: SQLite's older versions take 999 parameters.
_AT_ONCE = 100
_COLUMNS = ("digest", "task", "lane", "day", "bucket", "runs")


def add(connection: Any, counts: RunCounts, day: int) -> None:
    """Add these runs to the day's. In the order of the primary key, so that two who do this at
    once wait for each other, and not each for the other."""
    rows = sorted(
        (digest_of("runs", str(day), *map(str, run)), run[0], run[1], day, run[2], times)
        for run, times in counts.items()
    )
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        with connection.cursor() as cursor:
            cursor.execute(_statement(connection, len(some)), [v for row in some for v in row])


def read(connection: Any, first_day: int) -> Iterator[tuple[tuple[str, str, int], int]]:
    """The runs of that day and later."""
    quote = connection.ops.quote_name
    sql = (
        f"SELECT {quote('task')}, {quote('lane')}, {quote('bucket')}, {quote('runs')} "
        f"FROM {quote(RunTime._meta.db_table)} WHERE {quote('day')} >= %s"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [first_day])
        for task, lane, bucket, runs in cursor.fetchall():
            yield (task, lane, int(bucket)), int(runs)


def delete_before(connection: Any, first_day: int, limit: int) -> int:
    """Delete rows of days before that, at most ``limit``; returns how many."""
    quote = connection.ops.quote_name
    table = quote(RunTime._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {quote('digest')} FROM {table} WHERE {quote('day')} < %s LIMIT %s",
            [first_day, limit],
        )
        old = [line[0] for line in cursor.fetchall()]
        if not old:
            return 0
        marks = ", ".join(["%s"] * len(old))
        cursor.execute(f"DELETE FROM {table} WHERE {quote('digest')} IN ({marks})", old)
        return int(cursor.rowcount)


def _statement(connection: Any, rows: int) -> str:
    quote = connection.ops.quote_name
    table, runs = quote(RunTime._meta.db_table), quote("runs")
    marks = "(" + ", ".join(["%s"] * len(_COLUMNS)) + ")"
    insert = (
        f"INSERT INTO {table} ({', '.join(map(quote, _COLUMNS))}) "
        f"VALUES {', '.join([marks] * rows)}"
    )
    if connection.vendor == "mysql":
        return f"{insert} ON DUPLICATE KEY UPDATE {runs} = {runs} + VALUES({runs})"
    conflict = f"ON CONFLICT ({quote('digest')}) DO UPDATE"
    return f"{insert} {conflict} SET {runs} = {table}.{runs} + EXCLUDED.{runs}"
