"""The Redis store beside the one in memory: the same calls, the same letters, no key too many."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from celery_idem.deadletters.base import TRAIL_S, Filter
from celery_idem.deadletters.letter import Attempt, Letter, Message, Reason, State
from celery_idem.deadletters.memory import MemoryLetterStore
from celery_idem.deadletters.redis import store as module
from celery_idem.deadletters.redis.store import RedisLetterStore
from tests.deadletters.examples import letter

KINDS = ("task", "lane", "queue")


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisLetterStore]:
    store = RedisLetterStore.from_url(redis_url, prefix=f"beside-{uuid.uuid4().hex[:8]}")
    yield store
    store.close()


def seen(letters: Any) -> list[Any]:
    """All of the letters but their times, which two clocks gave them, in their order."""
    return [
        replace(
            it,
            position=0,
            first_died_ms=0,
            last_died_ms=0,
            history=tuple(replace(each, at_ms=0) for each in it.history),
        )
        for it in letters
    ]


def indexes_of(store: RedisLetterStore) -> dict[str, Any]:
    """What stands in the server beside the letters, without what all keys begin with."""
    found: dict[str, Any] = {}
    for key in store.client.scan_iter(match=store._base + b"*"):
        name = key[len(store._base) :].decode()
        if name == "last" or name.startswith(("l:", "sent:")):
            continue
        if name.startswith("fault:"):
            found[name] = {k.decode(): v.decode() for k, v in store.client.hgetall(key).items()}
        else:
            scored = store.client.zrange(key, 0, -1, withscores=True)
            found[name] = {member.decode(): int(score) for member, score in scored}
            if name == "groups" or name.startswith("groups-of:"):
                found[name] = set(found[name])
    return found


def indexes_wanted(letters: list[Letter]) -> dict[str, Any]:
    """What should stand there, for these letters."""
    wanted: dict[str, Any] = defaultdict(dict)
    for it in letters:
        group = it.fault.group
        names = {"task": it.task, "lane": it.lane, "queue": it.message.queue}
        for index in (
            "all",
            *(f"{kind}:{name}" for kind, name in names.items()),
            f"reason:{it.reason.value}",
            f"state:{it.state.value}",
            f"group:{group}",
            f"group-of:{it.task}\0{group}",
        ):
            wanted[index][it.id] = it.position
        for kind, name in names.items():
            if name:
                wanted[f"names:{kind}"][name] = 0
        if it.key:
            wanted["keys"][f"{it.key}\0{it.id}"] = 0
        wanted[f"fault:{group}"] = {"type": it.fault.error_type, "place": it.fault.place}
        for index in ("groups", f"groups-of:{it.task}"):
            wanted[index] = set(wanted[index] or ()) | {group}
    return dict(wanted)


class Both:
    """The same calls on both stores, chosen by a seed."""

    def __init__(self, store: RedisLetterStore, seed: int) -> None:
        self.redis, self.memory, self.random = store, MemoryLetterStore(), random.Random(seed)

    def one_call(self) -> str:
        chance = self.random
        number, by = chance.randrange(4), chance.choice(["ann", "bob"])
        it = letter(number)
        what = chance.choice(["put", "put", "note", "edit", "take", "take", "give_back", "delete"])
        args: tuple[Any, ...] = (it.id,)
        options: dict[str, Any] = {}
        if what == "put":
            args = (self._letter(number),)
        elif what == "note":
            args = (it.id, Attempt(7, "noted", by, str(chance.random())))
        elif what == "edit":
            text = str(chance.random())
            before = self.memory.get(it.id)
            message = replace((before or it).message, body=text.encode())
            args = (it.id, message, chance.choice(["", text]), Attempt(7, "edited", by, text))
        elif what == "take":
            args = (it.id, by, 3_600_000)
        elif what == "give_back":
            args = (it.id, by)
        else:
            args, options = (it.id, chance.choice(["", by])), {"sent": chance.random() < 0.5}
        ours, theirs = (
            getattr(store, what)(*args, **options) for store in (self.redis, self.memory)
        )
        if isinstance(theirs, Letter):
            ours, theirs = seen([ours]), seen([theirs])
        said = f"{what} {args[1:]} of {number}"
        assert ours == theirs, said
        return said

    def _letter(self, number: int) -> Letter:
        chance = self.random
        made = letter(
            number,
            task=chance.choice(["t.one", "t.two"]),
            lane=chance.choice(["", "low", "high"]),
            reason=chance.choice([Reason.FAILURE, Reason.POISON]),
            error=chance.choice(["ValueError", "KeyError"]),
            place=chance.choice(["here", "there"]),
        )
        message = replace(made.message, queue=chance.choice(["", "low", "q"]))
        key = chance.choice(["", made.key])
        return replace(made, message=message, key=key, replayable=chance.random() < 0.7)


@pytest.mark.parametrize("seed", range(12))
def test_after_any_calls_both_hold_the_same_and_every_index_what_it_should(seed, store):
    both = Both(store, seed)

    for _ in range(60):
        said = both.one_call()

        ours = store.page(Filter())
        assert seen(ours) == seen(both.memory.page(Filter())), said
        assert indexes_of(store) == indexes_wanted(ours), said
        for number in range(4):
            name = letter(number).id
            trails = [seen_trail(it.trail(name)) for it in (store, both.memory)]
            assert trails[0] == trails[1], said


def seen_trail(trail: tuple[Attempt, ...]) -> list[tuple[str, str, str]]:
    return [(it.what, it.by, it.detail) for it in trail]


def test_what_was_sent_is_remembered_for_a_while_and_what_was_thrown_away_is_not(store):
    kept, other = store.put(letter(1)), store.put(letter(2))

    assert store.delete(kept.id, sent=True)
    assert store.delete(other.id)

    keys = sorted(key[len(store._base) :].decode() for key in store.client.keys("*"))
    assert keys == ["last", f"sent:{kept.id}"]
    ttl = store.client.ttl(store._base + f"sent:{kept.id}".encode())
    assert TRAIL_S - 60 < ttl <= TRAIL_S


def test_a_trail_of_one_second_is_one(store):
    kept = store.put(letter(1))

    store._call(module._DELETE, kept.id, "", "1")

    assert store.trail(kept.id)


def test_a_call_that_is_said_again_is_one_death(store):
    """Its reply was lost on the way."""
    token_at = 14
    calls: list[tuple[Any, ...]] = []
    store._call, say = lambda *args: calls.append(args) or say(*args), store._call
    first = store.put(letter(1))

    assert int(say(*calls[0])) == first.position

    assert store.get(first.id) == first
    assert len(calls[0][1:][token_at]) == 18


def test_an_edited_message_that_is_sent_and_dies_again_keeps_its_first_one(store):
    kept = store.put(letter(1))
    store.edit(kept.id, Message(body=b"new"), "", Attempt(0, "edited", "ann"))
    store.delete(kept.id, sent=True)

    again = store.put(letter(1))

    assert again.original == kept.message
    assert again.state is State.EDITED
    assert again.first_died_ms == kept.first_died_ms
    assert not store.trail(kept.id)


def test_positions_go_on_where_the_servers_clock_went_back(store):
    ahead = 4_000_000_000_000_000
    store.client.set(store._base + b"last", ahead)

    assert [store.put(letter(number)).position for number in (1, 2)] == [ahead + 1, ahead + 2]


def test_an_entry_is_made_at_its_time_or_now_and_once(store):
    kept = store.put(letter(1))
    seconds, micros = store.client.time()
    for at_ms in (5, 5, 0):
        store.note(kept.id, Attempt(at_ms, "noted", "ann"))

    later = store.client.time()[0] * 1000 + 1000
    assert [it.at_ms for it in store.get(kept.id).history[1:2]] == [5]
    [now] = [it.at_ms for it in store.get(kept.id).history[2:]]
    assert seconds * 1000 + micros // 1000 <= now <= later


def test_a_lease_lasts_as_long_as_was_said_by_the_servers_clock(store):
    kept = store.put(letter(1))
    seconds, micros = store.client.time()

    store.take(kept.id, "ann", 5000)

    until = int(store.client.hget(store._base + f"l:{kept.id}".encode(), "un"))
    before = seconds * 1000 + micros // 1000 + 5000
    assert before <= until < before + 60_000


@pytest.mark.parametrize("order", ["new", "old"])
@pytest.mark.parametrize("text", ["", "keyerr"])
def test_a_long_search_goes_on_where_it_stopped(order, text, store):
    """Each call looks at no more than it may."""
    for number in range(12):
        rare = number % 6 == 1
        store.put(letter(number, lane="rare" if rare else "low", error="KeyError" if rare else "E"))
    low, high, found, calls = "0", "+inf", [], 0
    while calls < 20:
        calls += 1
        args = [order, low, high, "1", "5", text, "task:t.one", "lane:rare"]
        ids, beyond = store._call(module._FIND, *(args if not text else args[:-1]))
        found += ids
        if not beyond:
            break
        if order == "new":
            high = str(int(beyond) - 1)
        else:
            low = str(int(beyond) + 1)

    expected = [letter(number).id.encode() for number in (1, 7)]
    assert found == (expected if order == "old" else expected[::-1])
    assert calls == (3 if not text else {"old": 5, "new": 5}[order])


def test_a_search_asks_the_smallest_index_first(store):
    """A rare task is found without a look at all that have the same lane."""
    for number in range(40):
        store.put(letter(number, task="t.rare" if number == 0 else "t.one"))

    for indexes in (["task:t.rare", "lane:low"], ["lane:low", "task:t.rare"]):
        ids, _ = store._call(module._FIND, "new", "0", "+inf", "5", "2", "", *indexes)
        assert ids == [letter(0).id.encode()]


def test_a_tally_over_more_than_one_look_counts_every_letter_once(store):
    """The script reads 500 at a time."""
    for number in range(1005):
        made = letter(number, error="KeyError" if number % 2 else "E")
        store._call(
            module._PUT, made.id, "{}", "", made.task, made.lane, "failure", made.fault.group, "",
            made.fault.error_type, "", "keyerror" if number % 2 else "e", "", "1", "", "t", "20",
        )  # fmt: skip

    [first, second], beyond = store._call(module._TALLY, "0", "+inf", "20000", "", "lane:low")
    assert (first[1], second[1], beyond) == (503, 502, b"")
    assert (first[4], second[4]) == (letter(1004).id.encode(), letter(1003).id.encode())
    assert int(first[2]) < int(second[2]) < int(second[3]) < int(first[3])
    [one], beyond = store._call(module._TALLY, "0", "+inf", "500", "keyerr", "lane:low")
    assert one[1] == 250
    [one], beyond = store._call(module._TALLY, str(int(beyond) + 1), "+inf", "1001", "keyerr")
    assert (one[1], beyond) == (252, b"")
    pages = [store._call(module._TALLY, first[2], first[3], most, "") for most in ("500", "1500")]
    assert [sum(row[1] for row in rows) for rows, _ in pages] == [500, 1005]

    store.put(letter(2000, lane="rare"))
    for indexes in (["lane:rare", "lane:low"], ["lane:low", "lane:rare"]):
        assert store._call(module._TALLY, "0", "+inf", "1000", "", *indexes) == [[], b""]


@pytest.mark.parametrize("text", ["keyerr", "absent"])
def test_a_text_is_looked_for_in_what_all_indexes_have(text, store):
    """And from its first character on."""
    for number, lane in enumerate(["low", "rare", "rare"]):
        made = letter(number, lane=lane, task="t.one" if number < 2 else "t.two")
        store._call(
            module._PUT, made.id, "{}", "", made.task, lane, "failure", "g", "", "KeyError", "",
            "keyerror", "", "1", "", "t", "20",
        )  # fmt: skip
    both = [text, "task:t.one", "lane:rare"]

    ids, _ = store._call(module._FIND, "new", "0", "+inf", "5", "500", *both)
    rows, _ = store._call(module._TALLY, "0", "+inf", "500", *both)

    assert ids == ([letter(1).id.encode()] if text == "keyerr" else [])
    assert [row[1] for row in rows] == ([1] if text == "keyerr" else [])


def test_a_time_in_which_nobody_died_has_no_groups(store):
    store.put(letter(1))

    assert store._call(module._GROUPS, "0", "1", "", "") == []
