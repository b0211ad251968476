"""Many at the same letters in the same moment, and names that are hard to tell apart."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery_idem.deadletters.base import Filter, LetterStore
from celery_idem.deadletters.letter import Attempt
from tests.deadletters.examples import ids, letter

DEADLINE_S = 60


def at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """What each of so many threads got that began together."""
    gate = threading.Barrier(count)

    def run(number: int) -> Any:
        gate.wait(DEADLINE_S)
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count), timeout=DEADLINE_S))


def test_letters_that_are_put_at_once_are_all_there_each_in_a_place_of_its_own(
    store: LetterStore,
) -> None:
    at_once(6, lambda part: [store.put(letter(part * 10 + n)) for n in range(10)])

    found = store.page(Filter(), limit=100)

    assert {it.task_id for it in found} == {f"id-{n}" for n in range(60)}
    assert len({it.position for it in found}) == 60


def test_a_message_that_dies_in_several_hands_at_once_is_one_letter_and_no_death_is_lost(
    store: LetterStore,
) -> None:
    at_once(6, lambda _: [store.put(letter(1)) for _ in range(5)])

    [kept] = store.page(Filter())

    assert kept.times == 30
    assert len(kept.history) == 30


def test_of_many_who_take_a_letter_at_once_one_has_it(store: LetterStore) -> None:
    kept = store.put(letter(1))

    taken = at_once(6, lambda number: store.take(kept.id, f"operator {number}", 60_000))

    assert len([it for it in taken if it]) == 1


def test_of_many_who_delete_what_they_sent_at_once_one_did(store: LetterStore) -> None:
    kept = store.put(letter(1))
    store.take(kept.id, "ann", 60_000)

    assert sorted(at_once(4, lambda _: store.delete(kept.id, "ann", sent=True))) == [
        False, False, False, True,
    ]  # fmt: skip
    assert len(store.trail(kept.id)) == 1


def test_notes_that_are_made_at_once_are_all_kept(store: LetterStore) -> None:
    kept = store.put(letter(1))

    at_once(6, lambda n: store.note(kept.id, Attempt(1000 + n, "noted", "ann", str(n))))

    now = store.get(kept.id)
    assert now is not None
    assert {it.detail for it in now.history[1:]} == {str(n) for n in range(6)}


ODD = [
    "A",
    "a",
    "a ",
    "é",
    "e",
    "\0",
    "\ud800",
    "ｗide 😀",
    "l" * 300 + "1",
    "l" * 300 + "2",
    "%s",
    "'",
]


def test_names_that_databases_take_for_equal_or_can_not_keep_are_kept_apart(
    store: LetterStore,
) -> None:
    for number, name in enumerate(ODD):
        store.put(letter(number, task=name, lane=name, key=f"key {name}", message=f"<{name}>"))

    for number, name in enumerate(ODD):
        for wanted in (Filter(task=name), Filter(lane=name), Filter(key=f"key {name}")):
            assert ids(store.page(wanted)) == [f"id-{number}"], (name, wanted)
            assert store.count(wanted) == 1
        kept = store.get(letter(number).id)
        assert kept is not None
        assert (kept.task, kept.lane, kept.fault.message) == (name, name, f"<{name}>")
    assert ids(store.page(Filter(text="<é>"))) == ["id-3"]
    assert store.count(Filter(text="😀")) == 1


def test_ids_that_cannot_be_are_of_no_letter(store: LetterStore) -> None:
    for odd in ("", "\0", "\ud800", "x" * 10_000):
        assert store.get(odd) is None
        assert store.take(odd, "ann", 1000) is None
        assert not store.delete(odd)
        assert not store.note(odd, Attempt(0, "noted"))
        assert store.trail(odd) == ()
        assert store.page(Filter(ids=(odd,))) == []


def test_two_operators_whose_names_differ_in_case_only_are_two(store: LetterStore) -> None:
    kept = store.put(letter(1))

    assert store.take(kept.id, "ann", 60_000)
    assert not store.take(kept.id, "Ann", 60_000)
    assert not store.delete(kept.id, "ann ")
