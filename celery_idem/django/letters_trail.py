"""What is remembered of letters that were sent again: if one dies once more, it knows its past."""

from __future__ import annotations

from typing import Any

from celery_idem.deadletters import codec
from celery_idem.deadletters.letter import Letter, Message, Reason
from celery_idem.django.letters_rows import changed, fetched, history_of
from celery_idem.django.letters_where import clean
from celery_idem.django.models import DeadLetter, DeadLetterTrail
from celery_idem.django.rows import CLOCK_US

_NAMES = ("first_died_ms", "times", "history", "original")
#: Trails whose time is over that one look deletes.
PRUNED_AT_ONCE = 100


def keep(connection: Any, letter_id: str, retention_ms: int) -> None:
    """Copy what is remembered of a letter, for so long."""
    quote = connection.ops.quote_name
    columns = ", ".join(quote(name) for name in ("id", *_NAMES))
    forget(connection, letter_id)
    sql = (
        f"INSERT INTO {quote(DeadLetterTrail._meta.db_table)} ({columns}, {quote('expires_ms')}) "
        f"SELECT {columns}, {CLOCK_US[connection.vendor]} / 1000 + %s "
        f"FROM {quote(DeadLetter._meta.db_table)} WHERE {quote('id')} = %s"
    )
    changed(connection, sql, [retention_ms, letter_id])


def past(connection: Any, letter_id: str) -> Letter | None:
    """A letter that was sent, as far as it is remembered; ``None`` when its time is over."""
    quote = connection.ops.quote_name
    sql = (
        f"SELECT {', '.join(quote(name) for name in _NAMES)} "
        f"FROM {quote(DeadLetterTrail._meta.db_table)} WHERE {quote('id')} = %s "
        f"AND {quote('expires_ms')} > {CLOCK_US[connection.vendor]} / 1000"
    )
    for first_ms, times, history, original in fetched(connection, sql, [clean(letter_id)]):
        return Letter(
            id=letter_id,
            reason=Reason.FAILURE,  # not remembered, and not asked for
            message=Message(b""),
            first_died_ms=int(first_ms),
            times=int(times),
            history=history_of(history),
            original=codec.load_message(original) if original else None,
        )
    return None


def forget(connection: Any, letter_id: str) -> None:
    """It is a letter again."""
    quote = connection.ops.quote_name
    sql = f"DELETE FROM {quote(DeadLetterTrail._meta.db_table)} WHERE {quote('id')} = %s"
    changed(connection, sql, [letter_id])


def prune(connection: Any) -> None:
    """Delete some of those whose time is over, by the index; without any, one look."""
    quote, table = connection.ops.quote_name, DeadLetterTrail._meta.db_table
    sql = (
        f"SELECT {quote('id')} FROM {quote(table)} "
        f"WHERE {quote('expires_ms')} <= {CLOCK_US[connection.vendor]} / 1000 "
        f"ORDER BY {quote('expires_ms')} LIMIT %s"
    )
    for (letter_id,) in fetched(connection, sql, [PRUNED_AT_ONCE]):
        forget(connection, letter_id)
