"""Which letters: a filter as the condition of a statement, and texts as their columns keep them."""

from __future__ import annotations

import hashlib
from typing import Any

from celery_idem.deadletters.base import Filter
from celery_idem.django.rows import position_of

#: Characters of a short text that a column holds, and hex digits that stand for a longer rest.
COLUMN_CHARS = 255
DIGEST_DIGITS = 20

#: A condition and what belongs at its marks.
Where = tuple[str, list[Any]]


def condition(
    connection: Any, wanted: Filter, low: int = 0, high: int = 0, *, died: bool = True
) -> Where:
    """The filter's condition without its ids, between two positions (``high`` 0: no end), both
    included.

    A letter's position is the microsecond in which it was stored, or a little more: that bounds
    the filter's times. An imported letter died before; ``died`` asks for that, too, which no index
    knows.
    """
    quote = connection.ops.quote_name
    parts: list[str] = []
    given: list[Any] = []

    def bound(column: str, comparison: str, value: int) -> None:
        parts.append(f"{quote(column)} {comparison} %s")
        given.append(value)

    exact = {
        "task": wanted.task,
        "lane": wanted.lane,
        "queue": wanted.queue,
        "group": wanted.group,
        "key": wanted.key,
        "reason": wanted.reason.value if wanted.reason else "",
        "state": wanted.state.value if wanted.state else "",
    }
    for column, value in exact.items():
        if value:
            part, its = same(connection, column, value)
            parts.append(part)
            given += its
    if wanted.since_ms:
        low = max(low, wanted.since_ms * 1000)
        if died:
            bound("last_died_ms", ">=", wanted.since_ms)
    if wanted.until_ms:
        high = min(high or wanted.until_ms * 1000 - 1, wanted.until_ms * 1000 - 1)
        if died:
            bound("last_died_ms", "<", wanted.until_ms)
    if low:
        bound("position", ">=", low)
    if high:
        bound("position", "<=", high)
    if wanted.text:
        parts.append(f"{position_of(connection.vendor, quote('searched'))} > 0")
        given.append(clean(wanted.text.casefold()))
    return " AND ".join(parts) or "1 = 1", given


def same(connection: Any, column: str, text: str) -> Where:
    """Equal to the letter. MariaDB's own ``=`` forgives case and blanks at the end: it finds the
    place in the index, and the bytes decide."""
    name, kept = connection.ops.quote_name(column), column_text(text)
    if connection.vendor != "mysql":
        return f"{name} = %s", [kept]
    return f"({name} = %s AND CAST({name} AS BINARY) = CAST(%s AS BINARY))", [kept, kept]


def one(connection: Any, letter_id: str, by: str = "") -> Where:
    """The letter of this id; with ``by``, only while that one has it."""
    where, given = f"{connection.ops.quote_name('id')} = %s", [clean(letter_id)]
    if not by:
        return where, given
    mine, its = same(connection, "holder", by)
    return f"{where} AND {mine}", given + its


def clean(text: str) -> str:
    """Without what a database can't keep: PostgreSQL no NUL, none of them half a character."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def column_text(text: str) -> str:
    """A short text as its column keeps it: itself, or where that can't be, its beginning and a
    digest, so that two are equal only where the whole texts are."""
    kept = clean(text)
    if kept == text and len(text) <= COLUMN_CHARS:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_DIGITS]
    return f"{kept[: COLUMN_CHARS - DIGEST_DIGITS - 1]}~{digest}"
