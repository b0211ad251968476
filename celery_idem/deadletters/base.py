"""The contract of a letter store. One conformance suite holds every store to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from celery_idem.deadletters.letter import Attempt, Letter, Message, Reason, State

#: Seconds that the history of a replayed letter is kept: a week.
TRAIL_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters; an empty filter is all. Times in milliseconds since 1970."""

    ids: tuple[str, ...] = ()
    task: str = ""
    lane: str = ""
    queue: str = ""
    reason: Reason | None = None
    state: State | None = None
    group: str = ""
    key: str = ""
    since_ms: int = 0
    until_ms: int = 0
    text: str = ""  #: part of the task's name, key, error type or message


@dataclass(frozen=True, slots=True)
class Group:
    """Letters of one fault."""

    group: str
    error_type: str
    place: str
    count: int
    first_ms: int
    last_ms: int
    example: str  #: id of one letter


class LetterStore(Protocol):
    """Keeps letters until a person decides."""

    def put(self, letter: Letter) -> Letter:
        """Store it before the message is acked. The same id again is the same letter: its times
        and history grow. One that brings a history (an import) keeps what it brings. Returns what
        is stored. Raises ``StoreUnavailable``."""

    def get(self, letter_id: str) -> Letter | None:
        """The whole letter."""

    def page(self, wanted: Filter, after: int = 0, limit: int = 50) -> list[Letter]:
        """Newest first; the cost does not grow with the number of letters. ``after`` is the
        ``position`` of the last letter of the page before."""

    def walk(self, wanted: Filter) -> Iterator[Letter]:
        """The filter's letters that are there now, oldest first, in bounded batches. What dies
        while one walks is not walked into."""

    def count(self, wanted: Filter) -> int:
        """How many."""

    def groups(self, wanted: Filter) -> Sequence[Group]:
        """Faults, the most letters first. Cheap without a filter, and by time and task alone."""

    def values(self, what: str, limit: int = 100) -> list[str]:
        """The different tasks, lanes or queues (``what``: ``"task"``, ``"lane"``, ``"queue"``) that
        letters have, in order, without reading letters; at most ``limit``."""

    def note(self, letter_id: str, attempt: Attempt) -> bool:
        """Add to a letter's history, at the store's time where the attempt has none."""

    def edit(self, letter_id: str, message: Message, key: str, attempt: Attempt) -> bool:
        """Replace the message and its key, keep the first message as ``original``."""

    def take(self, letter_id: str, by: str, lease_ms: int) -> Letter | None:
        """The right to replay this letter now; ``None`` when it is gone or somebody else has it.
        By the store's clock, free again when the lease is over."""

    def give_back(self, letter_id: str, by: str) -> bool:
        """The replay did not happen."""

    def delete(self, letter_id: str, by: str = "", *, sent: bool = False) -> bool:
        """Gone for good; with ``by``, only while that one has it: a letter that died again
        meanwhile is nobody's, and stays. ``sent``: its history is kept for :data:`TRAIL_S`, so
        that a message that dies again knows its past."""

    def trail(self, letter_id: str) -> tuple[Attempt, ...]:
        """The history of a letter that was sent and deleted, as long as it is kept."""

    def close(self) -> None:
        """Let go of connections."""
