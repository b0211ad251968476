"""Letters in this process: for tests and eager mode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from celery_idem.deadletters.base import TRAIL_S, Filter, Group
from celery_idem.deadletters.letter import (
    MAX_HISTORY,
    Attempt,
    Letter,
    Message,
    State,
    resting_state,
)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Kept:
    letter: Letter
    holder: str = ""
    until_ms: int = 0

    @property
    def shown(self) -> Letter:
        """The letter and how it stands."""
        state = State.REPLAYING if self.holder else resting_state(self.letter)
        return replace(self.letter, state=state)


class MemoryLetterStore:
    """See :class:`celery_idem.deadletters.base.LetterStore`. ``now_ms`` is its clock."""

    def __init__(self, now_ms: Callable[[], int] = _now_ms) -> None:
        self._now_ms = now_ms
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._sent: dict[str, tuple[Letter, int]] = {}
        self._last = 0

    def put(self, letter: Letter) -> Letter:
        with self._lock:
            now_ms = self._now_ms()
            before = self._kept.get(letter.id)
            sent = self._past(letter.id)
            letter = merged(before.letter if before else None, sent, letter, now_ms)
            self._sent.pop(letter.id, None)
            self._last = max(self._last + 1, now_ms * 1000)
            kept = _Kept(replace(letter, position=self._last))  # and nobody's any more
            self._kept[letter.id] = kept
            return kept.shown

    def get(self, letter_id: str) -> Letter | None:
        kept = self._kept.get(letter_id)
        return kept.shown if kept else None

    def page(self, wanted: Filter, after: int = 0, limit: int = 50) -> list[Letter]:
        newest_first = reversed(list(self.walk(wanted)))
        return [it for it in newest_first if not after or it.position < after][:limit]

    def walk(self, wanted: Filter) -> Iterator[Letter]:
        with self._lock:
            letters = [kept.shown for kept in self._kept.values()]
        letters.sort(key=lambda letter: letter.position)
        yield from (letter for letter in letters if matches(letter, wanted))

    def count(self, wanted: Filter) -> int:
        return sum(1 for _ in self.walk(wanted))

    def groups(self, wanted: Filter) -> Sequence[Group]:
        return grouped(self.walk(wanted))

    def values(self, what: str, limit: int = 100) -> list[str]:
        named = {"task": lambda it: it.task, "lane": lambda it: it.lane, "queue": _queue}[what]
        return sorted({named(it) for it in self.walk(Filter())} - {""})[:limit]

    def note(self, letter_id: str, attempt: Attempt) -> bool:
        with self._lock:
            kept = self._kept.get(letter_id)
            if kept is None:
                return False
            kept.letter = with_history(kept.letter, self._timed(attempt))
            return True

    def edit(self, letter_id: str, message: Message, key: str, attempt: Attempt) -> bool:
        with self._lock:
            kept = self._kept.get(letter_id)
            if kept is None:
                return False
            letter = kept.letter
            original = letter.original or letter.message
            edited = replace(letter, message=message, key=key, original=original)
            kept.letter = with_history(edited, self._timed(attempt))
            return True

    def take(self, letter_id: str, by: str, lease_ms: int) -> Letter | None:
        with self._lock:
            now_ms, kept = self._now_ms(), self._kept.get(letter_id)
            if kept is None or (kept.holder not in ("", by) and kept.until_ms > now_ms):
                return None
            kept.holder, kept.until_ms = by, now_ms + lease_ms
            return kept.shown

    def give_back(self, letter_id: str, by: str) -> bool:
        with self._lock:
            kept = self._kept.get(letter_id)
            if kept is None or kept.holder != by:
                return False
            kept.holder, kept.until_ms = "", 0
            return True

    def delete(self, letter_id: str, by: str = "", *, sent: bool = False) -> bool:
        with self._lock:
            kept = self._kept.get(letter_id)
            if kept is None or (by and kept.holder != by):
                return False
            del self._kept[letter_id]
            if sent:
                self._sent[letter_id] = (kept.letter, self._now_ms() + TRAIL_S * 1000)
            return True

    def trail(self, letter_id: str) -> tuple[Attempt, ...]:
        letter = self._past(letter_id)
        return letter.history if letter else ()

    def _past(self, letter_id: str) -> Letter | None:
        letter, until_ms = self._sent.get(letter_id, (None, 0))
        return letter if until_ms > self._now_ms() else None

    def close(self) -> None:
        """Nothing to let go of."""

    def _timed(self, attempt: Attempt) -> Attempt:
        return attempt if attempt.at_ms else replace(attempt, at_ms=self._now_ms())


def _queue(letter: Letter) -> str:
    return letter.message.queue


def merged(before: Letter | None, sent: Letter | None, letter: Letter, now_ms: int) -> Letter:
    """What is stored when this letter comes in: a first death, or one more of the same message,
    which is kept as ``before``, or was until it was ``sent``."""
    if letter.history and before is None:
        return letter
    before = before or sent
    died = Attempt(now_ms, "died", letter.worker, letter.reason.value)
    if before is None:
        first = replace(letter, first_died_ms=now_ms, last_died_ms=now_ms, times=1)
        return with_history(first, died)
    again = replace(
        letter,
        first_died_ms=before.first_died_ms,
        last_died_ms=now_ms,
        times=before.times + 1,
        history=before.history,
        original=before.original,
    )
    return with_history(again, died)


def with_history(letter: Letter, attempt: Attempt) -> Letter:
    """The letter with one more entry, the oldest forgotten where there are too many."""
    return replace(letter, history=(*letter.history, attempt)[-MAX_HISTORY:])


def matches(letter: Letter, wanted: Filter) -> bool:
    """Whether the letter is in the filter."""
    if wanted.ids and letter.id not in wanted.ids:
        return False
    if wanted.reason is not None and letter.reason is not wanted.reason:
        return False
    if wanted.state is not None and letter.state is not wanted.state:
        return False
    exact = (
        (wanted.task, letter.task),
        (wanted.lane, letter.lane),
        (wanted.queue, letter.message.queue),
        (wanted.group, letter.fault.group),
        (wanted.key, letter.key),
    )
    if any(want and want != have for want, have in exact):
        return False
    if wanted.since_ms and letter.last_died_ms < wanted.since_ms:
        return False
    if wanted.until_ms and letter.last_died_ms >= wanted.until_ms:
        return False
    if not wanted.text:
        return True
    searched = (letter.task, letter.key, letter.fault.error_type, letter.fault.message)
    return any(wanted.text.casefold() in text.casefold() for text in searched)


def grouped(letters: Iterator[Letter]) -> list[Group]:
    """Groups of these letters, the largest first."""
    found: dict[str, Group] = {}
    for letter in letters:
        fault, at_ms = letter.fault, letter.last_died_ms
        group = found.get(fault.group)
        if group is None:
            found[fault.group] = Group(
                fault.group, fault.error_type, fault.place, 1, at_ms, at_ms, letter.id
            )
            continue
        found[fault.group] = replace(
            group,
            count=group.count + 1,
            first_ms=min(group.first_ms, at_ms),
            last_ms=max(group.last_ms, at_ms),
        )
    return sorted(found.values(), key=lambda group: -group.count)
