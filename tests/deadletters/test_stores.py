"""What every letter store promises (``celery_idem.deadletters.base.LetterStore``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_idem.deadletters.base import Filter, LetterStore
from celery_idem.deadletters.letter import (
    MAX_HISTORY,
    Attempt,
    Message,
    Reason,
    State,
    named_fault,
)
from tests.deadletters.examples import ids, letter


def test_a_letter_comes_back_byte_for_byte(store: LetterStore) -> None:
    sent = letter(1)

    stored = store.put(sent)
    back = store.get(sent.id)

    assert back == stored
    assert back is not None
    assert back.message == sent.message
    assert back.fault == sent.fault
    assert (back.retries, back.crashes, back.fence, back.worker) == (3, 1, 17, "w@here")
    assert back.first_died_ms == back.last_died_ms > 0
    assert back.times == 1
    assert [(it.what, it.by, it.detail) for it in back.history] == [("died", "w@here", "failure")]
    assert store.get("no such letter") is None


def test_the_same_message_that_dies_twice_is_one_letter(store: LetterStore, clock: Any) -> None:
    first = store.put(letter(1))
    clock.pass_ms(5)
    second = store.put(letter(1, reason=Reason.POISON, lane="critical"))

    assert store.count(Filter()) == 1
    assert second.times == 2
    assert second.first_died_ms == first.first_died_ms < second.last_died_ms
    assert [it.detail for it in second.history] == ["failure", "poison"]
    assert store.count(Filter(lane="low")) == store.count(Filter(reason=Reason.FAILURE)) == 0
    assert store.count(Filter(lane="critical")) == store.count(Filter(reason=Reason.POISON)) == 1
    assert store.count(Filter(key="t.one:1")) == 1


def test_pages_go_from_the_newest_to_the_oldest_without_gap_or_overlap(
    store: LetterStore,
) -> None:
    for number in range(23):
        store.put(letter(number))

    seen: list[str] = []
    after = 0
    while page := store.page(Filter(), after=after, limit=5):
        assert len(page) == 5 or len(seen) == 20
        seen += ids(page)
        after = page[-1].position
        store.delete(page[-1].id)  # a cursor survives the letter that it came from

    assert seen == [f"id-{number}" for number in reversed(range(23))]


def test_a_walk_goes_from_the_oldest_on_and_not_into_what_comes_meanwhile(
    store: LetterStore,
) -> None:
    for number in range(3):
        store.put(letter(number))

    seen = []
    for it in store.walk(Filter()):
        seen.append(it.task_id)
        store.delete(it.id)
        store.put(letter(int(it.task_id[3:])))  # it dies again at once

    assert seen == ["id-0", "id-1", "id-2"]
    assert store.count(Filter()) == 3


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(task="t.two"), [3, 2]),
        (Filter(lane="critical"), [3, 1]),
        (Filter(queue="low"), [3, 2, 1, 0]),
        (Filter(queue="low", task="t.two", state=State.NEW), [3, 2]),
        (Filter(queue="lo"), []),
        (Filter(task="t.two", lane="critical"), [3]),
        (Filter(reason=Reason.POISON), [2]),
        (Filter(reason=Reason.POISON, task="t.one"), []),
        (Filter(group=named_fault("KeyError", "", place="shop.orders:pay").group), [1]),
        (Filter(key="t.two:2"), [2]),
        (Filter(key="t.two"), []),
        (Filter(text="gateway"), [3]),
        (Filter(text="GATEWAY down"), [3]),
        (Filter(text="t.two:2"), [2]),
        (Filter(text="keyerr", lane="critical"), [1]),
        (Filter(), [3, 2, 1, 0]),
        (Filter(ids=(letter(0).id, letter(2).id, "nobody")), [2, 0]),
        (Filter(ids=(letter(0).id, letter(2).id), task="t.two"), [2]),
    ],
)
def test_filters_find_what_they_say(store: LetterStore, wanted: Filter, found: list[int]) -> None:
    store.put(letter(0))
    store.put(letter(1, lane="critical", error="KeyError"))
    store.put(letter(2, task="t.two", reason=Reason.POISON))
    store.put(letter(3, task="t.two", lane="critical", message="the Gateway down there"))

    assert ids(store.page(wanted)) == [f"id-{number}" for number in found]
    assert ids(store.walk(wanted)) == [f"id-{number}" for number in reversed(found)]
    assert store.count(wanted) == len(found)


def test_times_are_a_filter(store: LetterStore, clock: Any) -> None:
    first = store.put(letter(1))
    clock.pass_ms(20)
    second = store.put(letter(2))

    assert ids(store.page(Filter(since_ms=second.last_died_ms))) == ["id-2"]
    assert ids(store.page(Filter(until_ms=second.last_died_ms))) == ["id-1"]
    assert store.count(Filter(since_ms=first.last_died_ms)) == 2
    assert [it.count for it in store.groups(Filter(since_ms=second.last_died_ms))] == [1]


def test_groups_count_the_faults(store: LetterStore, clock: Any) -> None:
    first = store.put(letter(1))
    clock.pass_ms(5)
    store.put(letter(2, task="t.two"))
    last = store.put(letter(3))
    other = store.put(letter(4, error="KeyError"))

    groups = store.groups(Filter())

    assert [(it.error_type, it.place, it.count) for it in groups] == [
        ("ValueError", "shop.orders:pay", 3),
        ("KeyError", "shop.orders:pay", 1),
    ]
    assert (groups[0].first_ms, groups[0].last_ms) == (first.last_died_ms, last.last_died_ms)
    assert groups[0].example in {letter(n).id for n in (1, 2, 3)}
    assert [it.count for it in store.groups(Filter(task="t.one"))] == [2, 1]
    assert [it.count for it in store.groups(Filter(text="keyerror"))] == [1]
    [two] = store.groups(Filter(task="t.two", lane="low"))
    assert (two.error_type, two.place, two.count, two.example) == (
        "ValueError",
        "shop.orders:pay",
        1,
        letter(2).id,
    )
    assert [it.error_type for it in store.groups(Filter(group=other.fault.group))] == ["KeyError"]

    store.delete(other.id)
    assert [it.error_type for it in store.groups(Filter())] == ["ValueError"]
    assert [it.count for it in store.groups(Filter(task="t.one"))] == [2]
    [one] = store.groups(Filter(task="t.one", since_ms=last.last_died_ms))
    assert (one.count, one.example) == (1, last.id)
    assert one.first_ms == one.last_ms == last.last_died_ms
    store.put(letter(1, task="t.two"))  # it died again, as another's
    assert [it.count for it in store.groups(Filter(task="t.two"))] == [2]
    assert [it.count for it in store.groups(Filter(task="t.one", group=one.group))] == [1]
    store.delete(last.id)
    assert list(store.groups(Filter(task="t.one"))) == []


def test_only_one_may_replay_a_letter_at_a_time(store: LetterStore, clock: Any) -> None:
    kept = store.put(letter(1))

    assert store.take(kept.id, "ann", 200) is not None
    assert store.take(kept.id, "bob", 200) is None
    assert store.take(kept.id, "ann", 200) is not None  # the reply was lost: asked again
    assert not store.give_back(kept.id, "bob")
    assert not store.delete(kept.id, "bob")
    assert store.give_back(kept.id, "ann")
    assert store.take(kept.id, "bob", 50) is not None
    clock.pass_ms(60)
    assert store.take(kept.id, "ann", 200) is not None  # bob was killed
    assert store.delete(kept.id, "ann")
    assert store.take(kept.id, "ann", 200) is None


def test_a_letter_that_dies_again_during_its_replay_is_not_deleted_with_it(
    store: LetterStore,
) -> None:
    kept = store.put(letter(1))
    store.take(kept.id, "ann", 10_000)
    store.put(letter(1))

    assert not store.delete(kept.id, "ann", sent=True)
    again = store.get(kept.id)
    assert again is not None
    assert again.times == 2


def test_a_replayed_letter_that_dies_again_knows_its_past(store: LetterStore) -> None:
    kept = store.put(letter(1))
    store.take(kept.id, "ann", 10_000)
    store.note(kept.id, Attempt(0, "replayed", "ann", "replay 1"))
    assert store.delete(kept.id, "ann", sent=True)
    assert [it.what for it in store.trail(kept.id)] == ["died", "replayed"]
    assert store.get(kept.id) is None
    assert store.count(Filter()) == 0

    again = store.put(letter(1))
    assert [it.what for it in again.history] == ["died", "replayed", "died"]
    assert again.times == 2
    assert again.first_died_ms == kept.first_died_ms
    assert again.history[1].at_ms >= kept.first_died_ms


def test_an_edit_keeps_the_first_message(store: LetterStore) -> None:
    kept = store.put(letter(1))
    second = Message(body=b"[[2], {}, {}]", content_type="application/json", headers={"id": "x"})
    third = Message(body=b"[[3], {}, {}]", content_type="application/json")

    assert store.edit(kept.id, second, "t.one:two", Attempt(0, "edited", "ann", "new key"))
    assert store.edit(kept.id, third, "t.one:three", Attempt(0, "edited", "bob"))

    now = store.get(kept.id)
    assert now is not None
    assert now.message == third
    assert now.original == kept.message
    assert [(it.what, it.by) for it in now.history[1:]] == [("edited", "ann"), ("edited", "bob")]
    assert ids(store.page(Filter(key="t.one:three"))) == ["id-1"]
    assert store.page(Filter(key="t.one:1")) == store.page(Filter(key="t.one:two")) == []
    assert not store.edit("nobody", third, "", Attempt(0, "edited"))


def test_history_is_bounded_and_the_oldest_goes_first(store: LetterStore) -> None:
    kept = store.put(letter(1))
    for number in range(MAX_HISTORY + 5):
        store.note(kept.id, Attempt(1000 + number, "noted", "ann", str(number)))

    now = store.get(kept.id)
    assert now is not None
    assert len(now.history) == MAX_HISTORY
    assert now.history[-1] == Attempt(1000 + MAX_HISTORY + 4, "noted", "ann", str(MAX_HISTORY + 4))
    assert now.history[0].detail == "5"
    assert not store.note("nobody", Attempt(0, "noted"))


def test_a_letter_that_dies_too_often_remembers_its_last_deaths(store: LetterStore) -> None:
    for number in range(MAX_HISTORY + 2):
        last = store.put(replace(letter(1), worker=f"w{number}"))
        assert len(last.history) == min(number + 1, MAX_HISTORY)

    assert last.times == MAX_HISTORY + 2
    assert [it.by for it in last.history] == [f"w{n + 2}" for n in range(MAX_HISTORY)]


def test_deleting_takes_a_letter_out_of_everything(store: LetterStore) -> None:
    kept = store.put(letter(1))

    assert store.delete(kept.id)
    assert not store.delete(kept.id)
    assert store.count(Filter()) == store.count(Filter(task="t.one")) == 0
    assert store.page(Filter(key=kept.key)) == []
    assert list(store.groups(Filter())) == []


def test_the_same_death_in_the_same_millisecond_has_an_order(store: LetterStore) -> None:
    positions = [store.put(letter(number)).position for number in range(50)]

    assert positions == sorted(set(positions))


def test_how_a_letter_stands(store: LetterStore, clock: Any) -> None:
    def states() -> dict[str, str]:
        found = {it.task_id[3:]: it.state for it in store.page(Filter())}
        for number, state in found.items():
            wanted = Filter(state=state)
            assert f"id-{number}" in ids(store.page(wanted))
            assert store.count(wanted) == list(found.values()).count(state)
            assert store.get(letter(int(number)).id).state is state  # type: ignore[union-attr]
        return {number: state.value for number, state in found.items()}

    for number in range(4):
        assert store.put(letter(number)).state is State.NEW
    assert store.put(letter(1)).state is State.AGAIN
    store.edit(letter(2).id, Message(body=b"x"), "k", Attempt(0, "edited", "ann"))
    store.put(replace(letter(3), replayable=False))
    rested = {"0": "new", "1": "again", "2": "edited", "3": "not_replayable"}
    assert states() == rested

    for number in range(4):
        taken = store.take(letter(number).id, "ann", 60_000)
        assert taken is not None
        assert taken.state is State.REPLAYING
    assert set(states().values()) == {"replaying"}

    store.edit(letter(1).id, Message(body=b"y"), "k", Attempt(0, "edited", "bob"))
    assert states()["1"] == "replaying"
    store.put(letter(0))
    assert states()["0"] == "again"
    for number in range(1, 4):
        assert store.give_back(letter(number).id, "ann")
    assert states() == {**rested, "0": "again", "1": "edited"}
    store.delete(letter(0).id)
    assert store.count(Filter(state=State.AGAIN)) == 0


def test_letters_say_which_tasks_lanes_and_queues_there_are(store: LetterStore) -> None:
    for number in range(9):
        store.put(letter(number, task=f"t.{number % 3}", lane=["low", "critical", ""][number % 3]))

    assert store.values("task") == ["t.0", "t.1", "t.2"]
    assert store.values("task", limit=2) == ["t.0", "t.1"]
    assert store.values("lane") == ["critical", "low"]
    assert store.values("queue") == ["low"]

    for number in (0, 3, 6):
        store.delete(letter(number).id)
    store.put(letter(1, task="t.9", lane="normal"))
    assert store.values("task") == ["t.1", "t.2", "t.9"]
    assert store.values("lane") == ["critical", "normal"]


def test_a_letter_that_brings_its_history_keeps_it(store: LetterStore) -> None:
    """An import."""
    kept = store.put(letter(1))
    store.edit(kept.id, Message(body=b"new"), "k", Attempt(5, "edited", "ann"))
    before = store.get(kept.id)
    assert before is not None
    store.delete(kept.id)

    back = store.put(before)

    assert replace(back, position=0) == replace(before, position=0)
    assert store.put(letter(1)).times == 2


def test_an_import_brings_what_it_says_also_of_a_letter_that_was_sent_a_moment_ago(
    store: LetterStore, clock: Any
) -> None:
    """It counts no death, and what is remembered of the one that was sent is not mixed in."""
    first = store.put(letter(1))
    store.delete(first.id)
    clock.pass_ms(5)
    store.put(letter(1))
    store.edit(first.id, Message(body=b"new"), "k", Attempt(5, "edited", "ann"))
    store.take(first.id, "ann", 10_000)
    assert store.delete(first.id, "ann", sent=True)

    back = store.put(first)

    assert replace(back, position=0) == replace(first, position=0)
    assert store.trail(first.id) == ()
    store.delete(first.id)
    again = store.put(replace(first, times=4))
    assert (again.times, again.state) == (4, State.AGAIN)
