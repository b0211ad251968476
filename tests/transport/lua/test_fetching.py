"""Messages that are taken, and looks at those that are not."""

from __future__ import annotations

import pytest
import redis

from celery_idem.transport import scripts
from tests.transport.lua.acting import (
    BELL,
    DEAD,
    FRONT,
    HOUR_MS,
    LANE,
    LATER,
    LEASES,
    MAIN,
    OTHER,
    STEPS,
    fetch,
    held_by,
    holds,
    inside,
    now_ms,
    status,
    waits,
)

# -- taking


def test_a_session_without_a_lease_takes_nothing(client):
    waits(client, MAIN)

    assert fetch(client) == [1]

    assert client.xinfo_groups(MAIN) == []


def test_a_message_is_taken_with_all_that_is_known_of_it(client, alive):
    entry, known = waits(client, MAIN), waits(client, MAIN, n="2", r="1", t="55", w="1")

    answer = fetch(client, "1,1,1")

    assert answer == [
        0,
        *(1, "0", entry, "0", "0", "", "0", "body"),
        *(1, "0", known, "2", "1", "55", "1", "body"),
    ]
    assert held_by(client, MAIN) == {entry: "me", known: "me"}
    assert client.exists(BELL) == 0
    assert fetch(client) == [0]


def test_the_front_goes_first_and_the_steps_in_their_order(client, alive):
    for step in ("1", "0", "f"):
        waits(client, f"{LANE}:{step}", m=step)

    assert fetch(client, "1,1,1")[8::8] == ["f", "0", "1"]
    waits(client, FRONT, m="f")
    for _ in range(4):
        waits(client, MAIN)
    assert len(fetch(client, "1,1,1")[8::8]) == 3


def test_what_is_at_the_front_of_a_lane_without_any_stream_is_taken(client, alive):
    waits(client, FRONT, m="back")

    assert fetch(client)[8::8] == ["back"]


def test_who_leaves_something_wakes_the_next_one_once(client, alive):
    for _ in range(4):
        waits(client, MAIN)

    fetch(client)
    assert client.lrange(BELL, 0, -1) == ["1"]
    fetch(client)
    assert client.llen(BELL) == 1
    client.delete(BELL)
    fetch(client, "1,1")
    assert client.exists(BELL) == 0


def test_a_message_that_nobody_will_ack_is_gone_when_it_is_taken(client):
    _, second = waits(client, MAIN, m="a"), waits(client, f"{OTHER}:0", m="b")
    client.zadd(LEASES, {"me": 10**15})

    answer = fetch(client, "1,2", lanes=[LANE, OTHER], free="10")

    assert answer[8::8] == ["a", "b"]
    assert client.xlen(MAIN) == 0
    assert held_by(client, MAIN) == {}
    assert held_by(client, f"{OTHER}:0") == {second: "me"}
    client.delete(LEASES)
    waits(client, MAIN, m="c")
    assert fetch(client, session="", free="1")[8::8] == ["c"]
    assert client.xlen(MAIN) == 0
    assert [it["name"] for it in client.xinfo_consumers(MAIN, "w")] == ["me", "nobody"]


def test_poison_and_what_is_no_message_is_set_aside_and_the_next_ones_come(client, alive):
    waits(client, MAIN, n="3", m="poison")
    client.xadd(MAIN, {"x": "y"})
    good = waits(client, MAIN, n="2")

    answer = fetch(client, most=3)

    assert answer == [0, 1, "0", good, "2", "0", "", "0", "body"]
    assert inside(client, DEAD) == [
        {"m": "poison", "n": "3", "reason": "poison"},
        {"m": "x y", "n": "0", "reason": "undecodable"},
    ]
    assert held_by(client, MAIN) == {good: "me"}
    assert client.xlen(MAIN) == 1


@pytest.mark.parametrize(
    "odd", [{"n": "x"}, {"n": "1" * 16}, {"r": "-1"}, {"t": "now"}, {"s": "nan"}, {"s": "1|2"}]
)
@pytest.mark.parametrize("most", [0, 3])
def test_what_can_not_be_counted_with_is_set_aside_as_it_is_taken(odd, most, client, alive):
    """Later, a requeue or a take-over would fail of it, and stop all others."""
    waits(client, MAIN, m="odd", **odd)
    waits(client, MAIN, m="good", n="2", r="1", t="5", s="-1.5e+30")

    assert fetch(client, "1,1", most=most)[8::8] == ["good"]

    assert inside(client, DEAD) == [{"m": "odd", "n": "0", "reason": "undecodable"}]


def test_a_time_that_is_none_counts_as_the_entrys_own(client, alive):
    waits(client, MAIN, t="soon")
    waits(client, f"{OTHER}:0", m="second")

    assert 0 <= status(client)[5] < 60_000
    answer = fetch(client, lanes=[LANE, OTHER], promises=[0, HOUR_MS], free="00")
    assert answer == [0], "it was set aside"
    answer = fetch(client, lanes=[LANE, OTHER], promises=[0, HOUR_MS], free="00")
    assert answer[8::8] == ["second"]


@pytest.mark.parametrize(("most", "taken"), [(0, 1), (1, 0), (2, 1)])
def test_so_many_deliveries_and_no_more_or_any_number(most, taken, client, alive):
    waits(client, MAIN, n="1")

    assert len(fetch(client, most=most)[8::8]) == taken


def test_what_a_lane_does_not_use_goes_to_the_others_in_their_shares(client, alive):
    third = "rs:{third}"
    for lane, count in ((OTHER, 3), (third, 4)):
        for number in range(count):
            waits(client, f"{lane}:0", m=f"{lane}{number}")

    answer = fetch(client, "1,1,2", lanes=[LANE, OTHER, third])
    assert answer[8::8] == [f"{OTHER}0", f"{OTHER}1", f"{OTHER}2"]

    assert fetch(client, "1,2", lanes=[LANE, OTHER, third])[8::8] == [f"{third}0", f"{third}1"]
    assert fetch(client, "1", lanes=[LANE, OTHER, third])[8::8] == [f"{third}2"]
    assert fetch(client, "2", lanes=[LANE, OTHER])[8::8] == []


def test_no_more_is_taken_than_wanted_where_one_lane_is_empty(client, alive):
    lanes = [LANE, OTHER, "rs:{third}"]
    for lane in lanes[1:]:
        for _ in range(4):
            waits(client, f"{lane}:0")

    assert fetch(client, "1,2,3", lanes=lanes)[1::8] == [2, 3, 2]


def test_lanes_that_nobody_picked_give_what_the_picked_ones_lack(client, alive):
    lanes = [LANE, OTHER, "rs:{third}"]
    waits(client, MAIN)
    for _ in range(4):
        waits(client, "rs:{third}:0")

    assert fetch(client, "2,2", lanes=lanes)[1::8] == [1, 3]
    assert fetch(client, "2", lanes=lanes)[1::8] == [3]


def test_in_deadline_order_the_message_that_is_due_first_is_taken(client, alive):
    now = now_ms(client)
    waits(client, MAIN, m="new", t=str(now - 1000))
    waits(client, f"{OTHER}:0", m="old", t=str(now - 5000))
    waits(client, f"{OTHER}:0", m="older place", t=str(now))

    def take(picks: str, *promises: int) -> list[str]:
        return fetch(client, picks, lanes=[LANE, OTHER], promises=promises)[8::8]

    assert take("1", 1000, 9000) == ["new"]
    assert take("1", 1000, 9000) == ["old"]
    waits(client, MAIN, m="last", t=str(now + 9000))
    assert take("1,1,1", 1000, 1000) == ["older place", "last"]


# -- looking


def test_the_size_is_what_waits_and_not_what_is_held(client):
    def size() -> int:
        return scripts.SIZE(client, [LANE], STEPS)

    assert size() == -1
    client.set(f"{LANE}:scored", 0)
    assert size() == 0
    holds(client, "me", MAIN)
    waits(client, MAIN)
    waits(client, f"{LANE}:3")
    client.zadd(f"{LANE}:z", {"a": 1})
    assert size() == 3


def test_the_status_of_a_lane_says_what_it_holds_and_how_old_it_is(client):
    now, *empty = status(client)
    assert empty == [0, 0, 0, 0, -1, -1, -1]
    assert abs(now - now_ms(client)) < 60_000
    holds(client, "me", MAIN)
    holds(client, "me", MAIN)
    holds(client, "me", f"{LANE}:3")
    waits(client, MAIN)
    waits(client, f"{LANE}:3", t=str(now - HOUR_MS))
    waits(client, DEAD)
    client.zadd(f"{LANE}:z", {"a": 1})
    client.zadd(LATER, {"b": now + HOUR_MS})

    _, ready, held, delayed, aside, oldest, longest, due = status(client)

    assert (ready, held, delayed, aside) == (3, 3, 1, 1)
    assert HOUR_MS <= oldest < HOUR_MS + 60_000
    assert 0 <= longest < 60_000
    assert HOUR_MS - 60_000 < due <= HOUR_MS
    client.zadd(LATER, {"b": 1})
    assert status(client)[-1] == 0


def test_of_one_held_message_it_is_said_how_long(client):
    assert status(client)[6] == -1
    holds(client, "me", MAIN)

    assert 0 <= status(client)[6] < 60_000


def test_in_a_lane_that_nobody_has_fetched_from_all_waits(client):
    for _ in range(2):
        waits(client, MAIN)

    _, ready, held, _, _, oldest, longest, due = status(client)

    assert scripts.SIZE(client, [LANE], STEPS) == 2
    assert (ready, held, longest, due) == (2, 0, -1, -1)
    assert 0 <= oldest < 60_000


# -- scored lanes


def place(client, number: int, score: float, name: str, kept: str | None) -> str:
    """One message in a scored lane, sent at this number of microseconds."""
    id = f"{number:016d}:{name}"
    client.zadd(f"{LANE}:z", {id: score})
    client.hset(f"{LANE}:i", name, id)
    if kept is not None:
        client.hset(f"{LANE}:b", id, kept)
    return id


def test_the_best_of_a_scored_lane_are_held_like_all(client, alive):
    place(client, 1_234_567_890_123_456, 2, "b", "1|2|a|b")
    place(client, 1_234_567_890_999_999, 1, "a", "0|1.5|x")
    last = place(client, 5, 3, "c", "0|3|z")
    moved_on = place(client, 7, 9, "c", "0|9|again")

    answer = fetch(client, "1,1")

    [first, second] = client.xrange(MAIN)
    assert first[1] == {"m": "x", "w": "0", "s": "1.5", "t": "1234567890999"}
    assert second[1] == {"m": "a|b", "w": "1", "s": "2", "t": "1234567890123"}
    assert answer == [
        0,
        *(1, "0", first[0], "0", "0", "1234567890999", "0", "x"),
        *(1, "0", second[0], "0", "0", "1234567890123", "1", "a|b"),
    ]
    assert held_by(client, MAIN) == {first[0]: "me", second[0]: "me"}
    assert client.zrange(f"{LANE}:z", 0, -1) == [last, moved_on]
    assert client.lrange(BELL, 0, -1) == ["1"]

    assert fetch(client, "1,1,1", steps="f,0")[8::8] == ["z", "again"]
    assert client.exists(f"{LANE}:z", f"{LANE}:b", f"{LANE}:i") == 0


def test_a_place_without_a_message_is_let_go(client, alive):
    place(client, 1, 1, "gone", None)

    assert fetch(client, "1") == [0]

    assert client.exists(f"{LANE}:z", f"{LANE}:i") == 0
    assert client.xlen(MAIN) == 0


def test_what_came_back_to_the_front_of_a_scored_lane_is_taken_before_its_best(client, alive):
    place(client, 1, 1, "a", "0|1|placed")
    waits(client, FRONT, m="back")

    assert fetch(client, "1")[8::8] == ["back"]

    assert client.zcard(f"{LANE}:z") == 1
    assert client.lrange(BELL, 0, -1) == ["1"], "another one is woken for it"
    waits(client, FRONT, m="back")
    for number in (2, 3):
        place(client, number, number, f"a{number}", "0|1|placed")
    assert fetch(client, "1,1")[8::8] == ["back", "placed"]
    assert client.zcard(f"{LANE}:z") == 2


# -- edges


def test_a_key_of_another_kind_is_an_error_and_not_an_empty_lane(client, alive):
    client.set(MAIN, "no stream")

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        fetch(client)


def test_a_lane_that_was_never_used_is_made_ready(client, alive):
    assert fetch(client, "1,1") == [0]

    assert client.xinfo_groups(MAIN)[0]["name"] == "w"
    assert client.exists(FRONT, f"{LANE}:1", BELL) == 0


def test_the_main_step_may_be_another_one(client, alive):
    waits(client, f"{LANE}:3", m="main")
    waits(client, f"{LANE}:1", m="before")
    waits(client, f"{LANE}:9", m="after")

    answer = fetch(client, "1,1,1,1", steps="f,1,3,9", main="3")

    assert answer[8::8] == ["before", "main", "after"]
    assert answer[2::8] == ["1", "3", "9"]
    assert client.exists(MAIN, FRONT) == 0


def test_who_takes_the_last_of_one_step_wakes_another_for_the_next_step(client, alive):
    waits(client, MAIN)
    waits(client, f"{LANE}:1")

    fetch(client)

    assert client.lrange(BELL, 0, -1) == ["1"]


def test_all_that_is_wanted_comes_from_the_only_lane_that_has_some(client, alive):
    for number in range(5):
        waits(client, f"{OTHER}:0", m=str(number))

    answer = fetch(client, "1,1,1", lanes=[LANE, OTHER])

    assert answer[8::8] == ["0", "1", "2"]
    assert answer[1::8] == [2, 2, 2]


def test_a_deadline_counts_from_the_first_sending_of_what_nobody_holds(client, alive):
    """By the oldest of every step; in a scored lane by its best."""
    now = now_ms(client)
    held = waits(client, MAIN, m="held", t="1")
    assert fetch(client)[3] == held
    waits(client, MAIN, m="a1", t=str(now - 10_000))
    waits(client, f"{LANE}:1", m="a2", t=str(now - 30_000))
    waits(client, f"{OTHER}:0", m="b", t=str(now - 20_000))
    scored = "rs:{scored}"
    id = f"{(now - 25_000) * 1000:016d}:x"
    client.zadd(f"{scored}:z", {id: 1})
    client.hset(f"{scored}:b", id, "0|1|c")
    lanes, promises = [OTHER, LANE, scored], [1000, 1000, 1000]

    answer = fetch(client, "1,1,1,1,1,1", lanes=lanes, promises=promises)

    assert answer[8::8] == ["a1", "a2", "c", "b"]


def test_of_what_has_no_time_of_its_own_the_id_tells_when_it_was_sent(client, alive):
    now = now_ms(client)
    client.xadd(MAIN, {"m": "young", "t": ""}, id=f"{now - 1000}-0")
    client.xadd(f"{OTHER}:0", {"m": "old"}, id=f"{now - 2000}-0")

    answer = fetch(client, "1,1", lanes=[LANE, OTHER], promises=[5000, 5000])
    assert answer[8::8] == ["old", "young"]
