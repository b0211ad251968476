"""Letters in the project's database, on connections of the store's own.

A letter must be there before its message is acked, whatever transaction its task was in: these
connections commit by themselves (:mod:`celery_idem.django.connections`). What is decided from a
row is written with one conditional statement; whoever comes second reads again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from django.db import DEFAULT_DB_ALIAS, IntegrityError

from celery_idem.core.errors import StoreUnavailable
from celery_idem.core.settings import DEFAULT_STORE_PATIENCE_S
from celery_idem.deadletters.base import TRAIL_S, Filter, Group
from celery_idem.deadletters.letter import Attempt, Letter, Message, resting_state
from celery_idem.deadletters.memory import grouped, matches, merged, with_history
from celery_idem.django import letters_rows as rows
from celery_idem.django import letters_trail as trails
from celery_idem.django.connections import Connections, Transaction
from celery_idem.django.letters_where import condition
from celery_idem.django.store import CONFLICT_PAUSE_S, MAX_CONFLICTS

#: Letters that one look of a walk brings.
WALK_BATCH = 500


class DjangoLetterStore:
    """See :class:`celery_idem.deadletters.base.LetterStore`.

    ``alias``: the database. ``patience_s``: how long a call is tried again while that can't be
    reached; then :class:`StoreUnavailable`.
    """

    def __init__(
        self, alias: str = DEFAULT_DB_ALIAS, *, patience_s: float = DEFAULT_STORE_PATIENCE_S
    ) -> None:
        self.alias = alias
        self._connections = Connections(alias, patience_s)

    # --- writing -------------------------------------------------------------------------

    def put(self, letter: Letter) -> Letter:
        token = os.urandom(9).hex()  # a call whose reply was lost is said again
        return self._connections.patiently(lambda connection: _put(connection, letter, token))

    def note(self, letter_id: str, attempt: Attempt) -> bool:
        def noted(connection: Any, row: rows.Row, at: Attempt) -> bool:
            if row.letter.history[-1:] == (at,):
                return True  # said twice: one entry
            return rows.note(connection, row, with_history(row.letter, at))

        return self._change(letter_id, attempt, noted)

    def edit(self, letter_id: str, message: Message, key: str, attempt: Attempt) -> bool:
        def edited(connection: Any, row: rows.Row, at: Attempt) -> bool:
            original = row.letter.original or row.letter.message
            letter = replace(row.letter, message=message, key=key, original=original)
            return rows.edit(connection, row, with_history(letter, at))

        return self._change(letter_id, attempt, edited)

    def take(self, letter_id: str, by: str, lease_ms: int) -> Letter | None:
        def run(connection: Any) -> Letter | None:
            if not rows.hold(connection, letter_id, by, lease_ms):
                return None
            return next(iter(rows.of_ids(connection, [letter_id])), None)

        return self._connections.patiently(run)

    def give_back(self, letter_id: str, by: str) -> bool:
        return self._connections.patiently(
            lambda connection: rows.let_go(connection, letter_id, by)
        )

    def delete(self, letter_id: str, by: str = "", *, sent: bool = False) -> bool:
        if not sent:
            return self._connections.patiently(
                lambda connection: rows.delete(connection, letter_id, by)
            )
        return self._connections.patiently(lambda connection: _sent(connection, letter_id, by))

    # --- reading -------------------------------------------------------------------------

    def get(self, letter_id: str) -> Letter | None:
        found = self._connections.patiently(lambda c: rows.of_ids(c, [letter_id]))
        return next(iter(found), None)

    def page(self, wanted: Filter, after: int = 0, limit: int = 50) -> list[Letter]:
        if wanted.ids:
            newest_first = reversed(self._of_ids(wanted))
            return [it for it in newest_first if not after or it.position < after][:limit]

        def run(connection: Any) -> list[Letter]:
            where, given = condition(connection, wanted, high=max(after - 1, 0))
            return rows.letters(connection, where, given, "DESC", limit)

        return self._connections.patiently(run)

    def walk(self, wanted: Filter) -> Iterator[Letter]:
        if wanted.ids:
            yield from self._of_ids(wanted)
            return
        low, high = 0, self._connections.patiently(rows.last_position)
        while low <= high:

            def run(connection: Any, low: int = low) -> list[Letter]:
                where, given = condition(connection, wanted, low, high)
                return rows.letters(connection, where, given, "ASC", WALK_BATCH)

            some = self._connections.patiently(run)
            yield from some
            if len(some) < WALK_BATCH:
                return
            low = some[-1].position + 1

    def count(self, wanted: Filter) -> int:
        if wanted.ids:
            return len(self._of_ids(wanted))
        return self._connections.patiently(
            lambda c: rows.count(c, *condition(c, wanted, died=False))
        )

    def groups(self, wanted: Filter) -> Sequence[Group]:
        if wanted.ids:
            return grouped(self.walk(wanted))

        def run(connection: Any) -> list[Group]:
            tallies = rows.tally(connection, *condition(connection, wanted, died=False))
            tallies.sort(key=lambda it: (-it[0], it[2]))
            examples = rows.at_positions(connection, [last for _, _, last in tallies])
            # One whose last letter was deleted between the two looks is not told of.
            return [
                _group(examples[last], count, first, last)
                for count, first, last in tallies
                if last in examples
            ]

        return self._connections.patiently(run)

    def values(self, what: str, limit: int = 100) -> list[str]:
        def run(connection: Any) -> list[str]:
            found: list[str] = []
            last = rows.next_value(connection, what, "")
            while last is not None and len(found) < limit:
                found.append(last)
                last = rows.next_value(connection, what, last)
            return found

        return self._connections.patiently(run)

    def trail(self, letter_id: str) -> tuple[Attempt, ...]:
        past = self._connections.patiently(lambda c: trails.past(c, letter_id))
        return past.history if past else ()

    def close(self) -> None:
        self._connections.close()

    # --- pieces --------------------------------------------------------------------------

    def _of_ids(self, wanted: Filter) -> list[Letter]:
        """Oldest first."""
        found = self._connections.patiently(lambda c: rows.of_ids(c, wanted.ids))
        return sorted((it for it in found if matches(it, wanted)), key=lambda it: it.position)

    def _change(
        self, letter_id: str, attempt: Attempt, write: Callable[[Any, rows.Row, Attempt], bool]
    ) -> bool:
        """Write what follows from the row, at the database's time; again if it has changed
        meanwhile. ``False``: there is no such letter."""

        def run(connection: Any) -> bool:
            for pause in _tries(letter_id):
                seen = rows.look(connection, letter_id)
                if seen.row is None:
                    return False
                at = replace(attempt, at_ms=attempt.at_ms or seen.now_us // 1000)
                if write(connection, seen.row, at):
                    return True
                pause()
            return False

        return self._connections.patiently(run)


def open_letters(around: Any, settings: Any, patience_s: float) -> DjangoLetterStore:
    """The factory behind ``dead_letters={"store": "django"}``."""
    return DjangoLetterStore(patience_s=patience_s)


def _put(connection: Any, letter: Letter, token: str) -> Letter:
    for pause in _tries(letter.id):
        seen = rows.look(connection, letter.id)
        if seen.row is not None and seen.row.token == token:
            return seen.row.letter
        before = seen.row.letter if seen.row else None
        sent = None if seen.row else trails.past(connection, letter.id)
        stored = merged(before, sent, letter, seen.now_us // 1000)
        stored = replace(stored, position=max(seen.last + 1, seen.now_us))
        stored = replace(stored, state=resting_state(stored))
        try:
            if _write(connection, seen.row, sent, stored, token):
                return stored
        except IntegrityError:
            pass  # somebody else's letter came between, with this id or this position
        pause()
    raise AssertionError("unreachable")


def _write(
    connection: Any, row: rows.Row | None, sent: Letter | None, letter: Letter, token: str
) -> bool:
    if row is not None:
        return rows.update(connection, row, letter, token)
    if sent is None:
        rows.insert(connection, letter, token)
        return True
    with Transaction(connection):
        rows.insert(connection, letter, token)
        trails.forget(connection, letter.id)
    return True


def _sent(connection: Any, letter_id: str, by: str) -> bool:
    with Transaction(connection):
        if not rows.lock(connection, letter_id, by):
            return False
        trails.keep(connection, letter_id, TRAIL_S * 1000)
        rows.delete(connection, letter_id)
    trails.prune(connection)
    return True


def _tries(letter_id: str) -> Iterator[Callable[[], None]]:
    """One turn per attempt at a conditional write; what it gives pauses a little, longer each
    time. Ends with :class:`StoreUnavailable`."""
    for tries in range(MAX_CONFLICTS):
        longest_s = min(0.001 * tries, CONFLICT_PAUSE_S)
        yield lambda longest_s=longest_s: time.sleep(random.uniform(0, longest_s))  # type: ignore[misc]
    raise StoreUnavailable(
        f"letter {letter_id} was written by others {MAX_CONFLICTS} times while this process "
        "tried to"
    )


def _group(example: Letter, count: int, first: int, last: int) -> Group:
    fault = example.fault
    return Group(
        fault.group, fault.error_type, fault.place, count, first // 1000, last // 1000, example.id
    )
