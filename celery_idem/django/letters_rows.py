"""A letter as a row, and the statements about letters, in SQL that three databases read alike.

By hand and on the store's own connections, for the reason that :mod:`celery_idem.django.rows`
gives.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from celery_idem.deadletters import codec
from celery_idem.deadletters.letter import Attempt, Letter, State, resting_state
from celery_idem.django.letters_where import clean, column_text, one, same
from celery_idem.django.models import DeadLetter
from celery_idem.django.rows import CLOCK_US

#: Ids and positions that one statement asks for; SQLite takes 999 parameters.
MOST_IN_ONE = 500
#: leaves room for as many writes again in 64 bits
_FIRST_VERSION_BITS = 62

_LETTER = (
    "id", "position", "data", "body", "history", "original", "times", "first_died_ms",
    "last_died_ms", "state",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it was read, and what the next write compares."""

    letter: Letter
    token: str
    version: int


@dataclass(frozen=True, slots=True)
class Look:
    """The database's time, the highest position so far, and the row that was asked for."""

    now_us: int
    last: int
    row: Row | None


# --- reading ---------------------------------------------------------------------------------


def look(connection: Any, letter_id: str) -> Look:
    """All that a decision about one letter needs, of one statement."""
    quote, table = connection.ops.quote_name, _table(connection)
    columns = ", ".join(f"r.{quote(name)}" for name in (*_LETTER, "token", "version"))
    sql = (
        f"SELECT {CLOCK_US[connection.vendor]}, (SELECT MAX({quote('position')}) FROM {table}), "
        f"{columns} FROM (SELECT 1 AS one) o LEFT JOIN {table} r ON r.{quote('id')} = %s"
    )
    [(now_us, last, *line)] = fetched(connection, sql, [clean(letter_id)])
    row = None
    if line[0] is not None:
        *of_letter, token, version = line
        row = Row(_letter(of_letter), token, int(version))
    return Look(int(now_us), int(last or 0), row)


def letters(
    connection: Any, where: str, given: Sequence[Any], order: str, limit: int
) -> list[Letter]:
    """The first letters of a condition, by position.

    Their positions are looked for first: those are in every index, so that the planner has no
    reason to go through all letters by position because it takes the wanted ones for frequent.
    """
    quote, table = connection.ops.quote_name, _table(connection)
    position = quote("position")
    columns = ", ".join(f"r.{quote(name)}" for name in _LETTER)
    sql = (
        f"SELECT {columns} FROM (SELECT {position} FROM {table} WHERE {where} "
        f"ORDER BY {position} {order} LIMIT %s) p JOIN {table} r ON r.{position} = p.{position}"
    )
    found = (_letter(line) for line in fetched(connection, sql, [*given, limit]))
    return sorted(found, key=lambda it: it.position, reverse=order == "DESC")


def of_ids(connection: Any, ids: Iterable[str]) -> list[Letter]:
    """These letters, where they are there, in no order."""
    return list(_among(connection, "id", list(dict.fromkeys(map(clean, ids)))))


def at_positions(connection: Any, positions: Sequence[int]) -> dict[int, Letter]:
    """The letters at these positions."""
    return {it.position: it for it in _among(connection, "position", positions)}


def last_position(connection: Any) -> int:
    """The highest position; 0 without letters."""
    quote = connection.ops.quote_name
    sql = f"SELECT MAX({quote('position')}) FROM {_table(connection)}"
    return int(fetched(connection, sql, [])[0][0] or 0)


def count(connection: Any, where: str, given: Sequence[Any]) -> int:
    """How many letters the condition has."""
    sql = f"SELECT COUNT(*) FROM {_table(connection)} WHERE {where}"
    return int(fetched(connection, sql, given)[0][0])


def tally(connection: Any, where: str, given: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Letters by error group: how many, first and last position. Reads an index only, where the
    condition is on time and group alone."""
    quote = connection.ops.quote_name
    position, group = quote("position"), quote("group")
    sql = (
        f"SELECT COUNT(*), MIN({position}), MAX({position}) FROM {_table(connection)} "
        f"WHERE {where} GROUP BY {group}"
    )
    return [(int(n), int(low), int(high)) for n, low, high in fetched(connection, sql, given)]


def next_value(connection: Any, column: str, after: str) -> str | None:
    """The least value of an indexed column after this one: one look into its index."""
    quote = connection.ops.quote_name
    sql = (
        f"SELECT {quote(column)} FROM {_table(connection)} WHERE {quote(column)} > %s "
        f"ORDER BY {quote(column)} LIMIT 1"
    )
    found = fetched(connection, sql, [after])
    return str(found[0][0]) if found else None


# --- writing ---------------------------------------------------------------------------------


def insert(connection: Any, letter: Letter, token: str) -> None:
    """A new row. Raises ``IntegrityError`` where its id or its position is taken."""
    values = {"id": letter.id, **_values(letter, token)}
    # Not 1: a letter that was deleted and is there again must not look like the one before it.
    values["version"] = random.getrandbits(_FIRST_VERSION_BITS)
    _insert(connection, DeadLetter, values)


def update(connection: Any, seen: Row, letter: Letter, token: str) -> bool:
    """The letter as it has died again, if the row is still the one that was seen."""
    return _write_over(connection, seen, _values(letter, token))


def note(connection: Any, seen: Row, letter: Letter) -> bool:
    """The letter's new history, if the row is still the one that was seen."""
    return _write_over(connection, seen, {"history": _values(letter, "")["history"]})


def edit(connection: Any, seen: Row, letter: Letter) -> bool:
    """The edited letter, likewise. While somebody replays it, its state says that."""
    quote, values = connection.ops.quote_name, _values(letter, "")
    names = ("key", "searched", "data", "body", "history", "original", "rests")
    state = f"CASE WHEN {quote('holder')} = '' THEN %s ELSE {quote('state')} END"
    return _write_over(
        connection,
        seen,
        {name: values[name] for name in names},
        {"state": (state, values["rests"])},
    )


def hold(connection: Any, letter_id: str, by: str, lease_ms: int) -> bool:
    """Take it, where nobody has it or the lease is over, by the database's clock."""
    quote = connection.ops.quote_name
    now_ms = f"({CLOCK_US[connection.vendor]} / 1000)"
    mine, its = same(connection, "holder", by)
    sql = (
        f"UPDATE {_table(connection)} SET {quote('holder')} = %s, {quote('state')} = %s, "
        f"{quote('held_until_ms')} = {now_ms} + %s WHERE {quote('id')} = %s AND "
        f"({quote('holder')} = '' OR {mine} OR {quote('held_until_ms')} <= {now_ms})"
    )
    given = [column_text(by), State.REPLAYING.value, lease_ms, clean(letter_id), *its]
    return changed(connection, sql, given) == 1


def let_go(connection: Any, letter_id: str, by: str) -> bool:
    """Nobody's again, where this one has it."""
    quote = connection.ops.quote_name
    where, given = one(connection, letter_id, by)
    sql = (
        f"UPDATE {_table(connection)} SET {quote('holder')} = '', {quote('held_until_ms')} = 0, "
        f"{quote('state')} = {quote('rests')} WHERE {where}"
    )
    return changed(connection, sql, given) == 1


def lock(connection: Any, letter_id: str, by: str = "") -> bool:
    """Inside a transaction: the row stays as it is until the end. ``False``: it is gone, or not
    ``by``'s. SQLite's transactions have locked everything by then."""
    where, given = one(connection, letter_id, by)
    sql = f"SELECT {connection.ops.quote_name('id')} FROM {_table(connection)} WHERE {where}"
    if connection.vendor != "sqlite":
        sql += " FOR UPDATE"
    return bool(fetched(connection, sql, given))


def delete(connection: Any, letter_id: str, by: str = "") -> bool:
    """Delete it, with ``by`` only while that one has it."""
    where, given = one(connection, letter_id, by)
    return changed(connection, f"DELETE FROM {_table(connection)} WHERE {where}", given) == 1


# --- pieces ----------------------------------------------------------------------------------


def history_of(lines: str) -> tuple[Attempt, ...]:
    """The column of a history."""
    return tuple(codec.load_attempt(line) for line in lines.split("\n") if line)


def _values(letter: Letter, token: str) -> dict[str, Any]:
    searched = (letter.task, letter.key, letter.fault.error_type, letter.fault.message)
    state = resting_state(letter).value
    return {
        "position": letter.position,
        "task": column_text(letter.task),
        "lane": column_text(letter.lane),
        "queue": column_text(letter.message.queue),
        "key": column_text(letter.key),
        "group": column_text(letter.fault.group),
        "reason": letter.reason.value,
        "state": state,
        "rests": state,
        "searched": clean("\n".join(searched).casefold()),
        "data": codec.dump_letter(letter),
        "body": letter.message.body,
        "history": "\n".join(codec.dump_attempt(it) for it in letter.history),
        "original": codec.dump_message(letter.original) if letter.original else None,
        "times": letter.times,
        "first_died_ms": letter.first_died_ms,
        "last_died_ms": letter.last_died_ms,
        "holder": "",
        "held_until_ms": 0,
        "token": token,
    }


def _letter(line: Sequence[Any]) -> Letter:
    letter_id, position, data, body, history, original, times, first_ms, last_ms, state = line
    return codec.load_letter(
        letter_id,
        data,
        bytes(body),
        first_ms=int(first_ms),
        last_ms=int(last_ms),
        times=int(times),
        position=int(position),
        history=history_of(history),
        original=codec.load_message(original) if original else None,
        state=State(state),
    )


def _among(connection: Any, column: str, values: Sequence[Any]) -> Iterable[Letter]:
    quote = connection.ops.quote_name
    columns = ", ".join(quote(name) for name in _LETTER)
    for start in range(0, len(values), MOST_IN_ONE):
        some = values[start : start + MOST_IN_ONE]
        marks = ", ".join(["%s"] * len(some))
        sql = f"SELECT {columns} FROM {_table(connection)} WHERE {quote(column)} IN ({marks})"
        yield from (_letter(line) for line in fetched(connection, sql, some))


def _write_over(
    connection: Any,
    seen: Row,
    values: Mapping[str, Any],
    computed: Mapping[str, tuple[str, Any]] = MappingProxyType({}),
) -> bool:
    quote = connection.ops.quote_name
    sets = {name: ("%s", value) for name, value in values.items()} | dict(computed)
    listed = ", ".join(f"{quote(name)} = {term}" for name, (term, _) in sets.items())
    sql = (
        f"UPDATE {_table(connection)} SET {listed}, {quote('version')} = {quote('version')} + 1 "
        f"WHERE {quote('id')} = %s AND {quote('version')} = %s"
    )
    given = [value for _, value in sets.values()]
    return changed(connection, sql, [*given, seen.letter.id, seen.version]) == 1


def _insert(connection: Any, model: Any, values: Mapping[str, Any]) -> None:
    quote = connection.ops.quote_name
    columns, marks = ", ".join(quote(name) for name in values), ", ".join(["%s"] * len(values))
    sql = f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES ({marks})"
    changed(connection, sql, list(values.values()))


def _table(connection: Any) -> str:
    table: str = connection.ops.quote_name(DeadLetter._meta.db_table)
    return table


def fetched(connection: Any, sql: str, given: Sequence[Any]) -> list[Any]:
    """The lines that the statement finds."""
    with connection.cursor() as cursor:
        cursor.execute(sql, list(given))
        return list(cursor.fetchall())


def changed(connection: Any, sql: str, given: Sequence[Any]) -> int:
    """How many rows the statement changed."""
    with connection.cursor() as cursor:
        cursor.execute(sql, list(given))
        return int(cursor.rowcount)
