"""Messages that are taken, and looks at those that are not."""

from __future__ import annotations

from celery_idem.transport import scripts
from tests.transport.lua.acting import (
    BELL,
    DEAD,
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
    holds(client, "me", f"{LANE}:3")
    waits(client, MAIN)
    waits(client, f"{LANE}:3", t=str(now - HOUR_MS))
    waits(client, DEAD)
    client.zadd(f"{LANE}:z", {"a": 1})
    client.zadd(LATER, {"b": now + HOUR_MS})

    _, ready, held, delayed, aside, oldest, longest, due = status(client)

    assert (ready, held, delayed, aside) == (3, 2, 1, 1)
    assert HOUR_MS <= oldest < HOUR_MS + 60_000
    assert 0 <= longest < 60_000
    assert HOUR_MS - 60_000 < due <= HOUR_MS
    client.zadd(LATER, {"b": 1})
    assert status(client)[-1] == 0
