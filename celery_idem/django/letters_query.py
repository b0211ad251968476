"""A page of letters, as its address says: filters, and where the next page begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import urlencode

from celery_idem.deadletters.base import Filter, LetterStore
from celery_idem.deadletters.describe import STATES
from celery_idem.deadletters.letter import Letter, Reason, State

#: Letters on a page, and different tasks, lanes and queues that a filter offers.
PAGE = 50
MOST_CHOICES = 50

_HOUR_S, _DAY_S = 3600, 86_400
#: in the address → (words, at least and at most so many seconds ago; 0: no bound)
AGES: dict[str, tuple[str, int, int]] = {
    "1h": ("past hour", _HOUR_S, 0),
    "1d": ("past day", _DAY_S, 0),
    "7d": ("past week", 7 * _DAY_S, 0),
    "over-1d": ("more than a day", 0, _DAY_S),
    "over-7d": ("more than a week", 0, 7 * _DAY_S),
}

Kind = TypeVar("Kind", bound=Enum)


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of a filter in the side bar."""

    words: str
    address: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Choices:
    """One filter of the side bar."""

    title: str
    choices: tuple[Choice, ...]


class Query:
    """The part of an address behind the question mark; what is not known in it says nothing."""

    NAMES = ("q", "task", "lane", "queue", "reason", "state", "group", "key", "age")

    def __init__(self, given: Mapping[str, str], now_s: Callable[[], float] = time.time) -> None:
        self.said = {name: given[name] for name in self.NAMES if given.get(name)}
        self._now_s = now_s
        after = given.get("after", "")
        self.after = int(after) if after.isascii() and after.isdigit() and len(after) < 19 else 0

    def filter(self) -> Filter:
        """The letters that are wanted."""
        said = self.said
        _, most_s, least_s = AGES.get(said.get("age", ""), ("", 0, 0))
        now_s = self._now_s()
        return Filter(
            task=said.get("task", ""),
            lane=said.get("lane", ""),
            queue=said.get("queue", ""),
            reason=_member(Reason, said.get("reason")),
            state=_member(State, said.get("state")),
            group=said.get("group", ""),
            key=said.get("key", ""),
            text=said.get("q", "").strip(),
            since_ms=round((now_s - most_s) * 1000) if most_s else 0,
            until_ms=round((now_s - least_s) * 1000) if least_s else 0,
        )

    def address(self, **others: str) -> str:
        """The same with other values; an empty one takes a filter out. Begins at the first page."""
        said = {name: value for name, value in {**self.said, **others}.items() if value}
        return "?" + urlencode(said)

    def page(self, store: LetterStore) -> tuple[list[Letter], str]:
        """This page's letters, and the address of the next page; none: it is the last. Nothing is
        counted: a page costs the same however many letters there are."""
        letters = store.page(self.filter(), self.after, PAGE + 1)
        if len(letters) <= PAGE:
            return letters, ""
        return letters[:PAGE], self.address(after=str(letters[PAGE - 1].position))

    def side_bar(self, store: LetterStore) -> list[Choices]:
        """The filters to choose from."""
        words = {state.value: STATES[state] for state in State}
        filters = [
            self._choices("reason", {it.value: it.value for it in Reason}),
            self._choices("state", words),
            self._choices("task", _themselves(store.values("task", MOST_CHOICES))),
            self._choices("queue", _themselves(store.values("queue", MOST_CHOICES))),
            self._choices("lane", _themselves(store.values("lane", MOST_CHOICES))),
            self._choices("age", {name: words for name, (words, _, _) in AGES.items()}),
        ]
        return [it for it in filters if len(it.choices) > 1]

    def _choices(self, name: str, offered: Mapping[str, str]) -> Choices:
        now = self.said.get(name, "")
        if now and now not in offered:
            offered = {**offered, now: now}
        lines = [Choice("All", self.address(**{name: ""}), not now)]
        lines += [
            Choice(words, self.address(**{name: value}), value == now)
            for value, words in offered.items()
        ]
        return Choices(name, tuple(lines))


def _themselves(values: list[str]) -> Mapping[str, str]:
    return {value: value for value in values}


def _member(kind: type[Kind], value: Any) -> Kind | None:
    try:
        return kind(value)
    except ValueError:
        return None
