"""What is held: acked, requeued, given back or set aside, and nothing beside it."""

from __future__ import annotations

import pytest
import redis

from celery_idem.transport import scripts
from tests.transport.lua.acting import (
    BELL,
    DEAD,
    DUE,
    FRONT,
    HOUR_MS,
    LANE,
    LATER,
    LEASES,
    MAIN,
    OTHER,
    STEPS,
    WAKE,
    ack,
    give_back,
    held_by,
    holds,
    inside,
    ms_of,
    now_ms,
    requeue,
    timed,
    waits,
)

# -- acks


def test_an_ack_removes_what_is_held_and_empty_streams_that_may_go(client):
    client.zadd(LEASES, {"me": 1})
    first, second = holds(client, "me", MAIN), holds(client, "me", MAIN)
    front, kept = holds(client, "me", FRONT), holds(client, "me", f"{LANE}:3")
    left = holds(client, "me", f"{LANE}:3")
    streams = [MAIN, FRONT, f"{LANE}:3"]
    acks = ["0", 2, first, second, "1", 1, front, "1", 1, kept]

    assert scripts.ACK(client, [LEASES, *streams], ["me", *acks]) == [1]

    assert client.exists(MAIN) == 1
    assert client.exists(FRONT) == 0
    assert client.xlen(MAIN) == 0
    assert held_by(client, MAIN) == {}
    assert held_by(client, f"{LANE}:3") == {left: "me"}
    assert client.xlen(f"{LANE}:3") == 1


def test_an_ack_of_what_is_not_held_is_told_and_removes_nothing(client):
    mine = holds(client, "me", MAIN)
    waiting = waits(client, MAIN)
    acks = ["0", 2, mine, waiting, "1", 1, "5-5"]

    answer = scripts.ACK(client, [LEASES, MAIN, FRONT], ["me", *acks])

    assert answer == [0, 1, waiting, 2, "5-5"]
    assert [entry for entry, _ in client.xrange(MAIN)] == [waiting]


# -- requeues


def test_a_first_requeue_is_at_the_front_at_once(client):
    entry = holds(client, "me", MAIN, n="4")

    assert requeue(client, entry) == [1, 1, 0]

    assert inside(client, FRONT) == [{"m": "body", "n": "5", "r": "1", "t": ms_of(entry), "w": "0"}]
    assert client.lrange(BELL, 0, -1) == ["1"]
    assert (client.exists(MAIN), client.xlen(MAIN), held_by(client, MAIN)) == (1, 0, {})
    assert client.exists(LATER, DUE, WAKE) == 0
    assert requeue(client, entry) == [0]
    assert client.xlen(FRONT) == 1


def test_a_requeue_keeps_since_when_it_waits_and_one_bell_is_enough(client):
    client.lpush(BELL, 1)
    for n in ("0", "0"):
        assert requeue(client, holds(client, "me", MAIN, t="1234", w="1", n=n)) == [1, 1, 0]

    assert inside(client, FRONT) == [{"m": "body", "n": "1", "r": "1", "t": "1234", "w": "1"}] * 2
    assert client.llen(BELL) == 1


def test_a_requeued_message_empties_the_front_but_not_what_others_wait_in(client):
    entry, other = holds(client, "me", FRONT, r="1"), holds(client, "me", f"{LANE}:3", r="1")
    waits(client, f"{LANE}:3")

    requeue(client, entry, "f")
    requeue(client, other, "3")

    assert client.exists(FRONT) == 0
    assert client.xlen(f"{LANE}:3") == 1


@pytest.mark.parametrize(
    ("requeues", "delay"), [("1", 100), ("2", 200), ("3", 400), ("11", 60_000), ("2000", 60_000)]
)
def test_later_requeues_wait_twice_as_long_each_time(requeues, delay, client):
    entry = holds(client, "me", FRONT, r=requeues, n="7", t="99")

    answer, before, after = timed(client, lambda: requeue(client, entry, "f"))

    times = int(requeues) + 1
    assert answer == [1, times, delay]
    [(member, due)] = client.zrange(LATER, 0, -1, withscores=True)
    since, rest = member.split("|", 1)
    assert len(since) == 16
    assert before <= int(since) <= after
    assert due == int(since) // 1000 + delay
    assert rest == f"f|8|{times}|99|body"
    assert client.zrange(DUE, 0, -1, withscores=True) == [(LANE, due)]
    assert client.lrange(WAKE, 0, -1) == ["1"]
    assert client.exists(FRONT, BELL) == 0


def test_the_exponent_of_a_requeues_delay_is_bounded(client):
    """2 to the power of 30, whatever the longest delay is."""
    entry = holds(client, "me", MAIN, r="5000")

    assert requeue(client, entry, first=1, longest=10**12) == [1, 5001, 2**30]


def test_a_requeue_wakes_a_keeper_once_and_only_when_its_lane_is_due_first(client):
    soon = now_ms(client) - 5
    client.zadd(DUE, {OTHER: soon})
    requeue(client, holds(client, "me", MAIN, r="3"))
    assert client.exists(WAKE) == 0

    client.zrem(DUE, OTHER)
    for _ in range(2):
        requeue(client, holds(client, "me", MAIN, r="1"))
    assert client.llen(WAKE) == 1
    client.zadd(DUE, {LANE: soon})
    requeue(client, holds(client, "me", MAIN, r="1"))
    assert client.zscore(DUE, LANE) == soon


def test_a_scored_message_waits_with_its_score_from_the_first_requeue_on(client):
    entry = holds(client, "me", MAIN, s="2.5", t="77")

    assert requeue(client, entry) == [1, 1, 0]

    [member] = client.zrange(LATER, 0, -1)
    assert member.split("|", 1)[1] == "s2.5|1|1|77|body"
    assert client.exists(FRONT, BELL) == 0


def test_what_another_session_holds_is_not_requeued(client):
    entry = holds(client, "other", MAIN)

    assert requeue(client, entry) == [0]
    assert requeue(client, entry, "5") == [0]

    assert held_by(client, MAIN) == {entry: "other"}
    assert client.xlen(MAIN) == 1
    assert client.exists(FRONT, LATER, BELL) == 0


def test_a_held_message_that_was_deleted_is_not_requeued(client):
    entry = holds(client, "me", MAIN)
    client.xdel(MAIN, entry)

    assert requeue(client, entry) == [0]
    assert held_by(client, MAIN) == {}
    assert client.exists(FRONT, LATER, BELL) == 0


# -- giving back


def test_what_is_named_is_given_back_to_the_front(client):
    plain = holds(client, "me", MAIN)
    known = holds(client, "me", f"{LANE}:3", n="2", r="1", t="44", w="1")
    kept, theirs = holds(client, "me", MAIN), holds(client, "other", MAIN)

    given = give_back(client, "these", ["0", plain, "3", known, "0", theirs, "7", "1-1"])

    assert given == 2
    assert inside(client, FRONT) == [
        {"m": "body", "n": "1", "r": "0", "t": ms_of(plain), "w": "0"},
        {"m": "body", "n": "3", "r": "1", "t": "44", "w": "1"},
    ]
    assert held_by(client, MAIN) == {kept: "me", theirs: "other"}
    assert client.xlen(MAIN) == 2
    assert client.exists(f"{LANE}:3") == 0
    assert client.lrange(BELL, 0, -1) == ["1"]
    assert give_back(client, "these", ["0", kept]) == 1
    assert client.llen(BELL) == 1
    client.delete(BELL)
    assert give_back(client, "these", ["0", theirs], "other") == 1
    assert client.llen(BELL) == 1


def test_what_is_given_back_keeps_its_score_for_a_requeue(client):
    give_back(client, "these", ["0", holds(client, "me", MAIN, s="2.5", t="44")])

    assert inside(client, FRONT) == [
        {"m": "body", "n": "1", "r": "0", "t": "44", "w": "0", "s": "2.5"}
    ]


def test_what_a_server_refuses_for_now_is_not_acked(client):
    """To be sent again: it is no ack that comes too late."""
    entry = holds(client, "me", MAIN)
    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(redis.RedisError, match="NOREPLICAS"):
            ack(client, entry)
    finally:
        client.config_set("min-replicas-to-write", 0)

    assert held_by(client, MAIN) == {entry: "me"}


def test_an_ack_to_what_is_no_stream_any_more_comes_too_late(client):
    client.set(MAIN, "somebody's own")

    assert ack(client, "1-1")[1:] == [1, "1-1"]


def test_what_is_not_named_is_given_back_with_others(client):
    kept, given = holds(client, "me", MAIN), holds(client, "me", MAIN)
    theirs = holds(client, "other", MAIN)
    for step in STEPS[2:]:
        holds(client, "me", f"{LANE}:{step}", n="1")
    waits(client, FRONT)

    assert give_back(client, "others", ["0", kept]) == 10

    assert held_by(client, MAIN) == {kept: "me", theirs: "other"}
    counts = [fields.get("n") for fields in inside(client, FRONT)]
    assert counts == [None, "1", *["2"] * 9]
    assert inside(client, FRONT)[1]["t"] == ms_of(given)
    assert client.exists(*(f"{LANE}:{step}" for step in STEPS[2:])) == 0


def test_of_more_than_a_page_the_newest_is_given_back_too(client):
    """A lost answer handed over the newest."""
    kept = [holds(client, "me", MAIN) for _ in range(2001)]
    lost = holds(client, "me", MAIN)

    assert give_back(client, "others", [part for entry in kept for part in ("0", entry)]) == 1

    assert client.xpending(MAIN, "w")["pending"] == len(kept)
    assert client.xpending_range(MAIN, "w", lost, lost, 1) == []


def test_what_was_handed_over_just_now_is_not_given_back_and_nobody_is_woken(client):
    entry = holds(client, "me", MAIN)

    assert give_back(client, "others", idle=HOUR_MS) == 0

    assert held_by(client, MAIN) == {entry: "me"}
    assert client.exists(FRONT, BELL) == 0


def test_a_held_message_that_was_deleted_is_let_go_and_the_main_stream_stays(client):
    gone = holds(client, "me", MAIN)
    client.xdel(MAIN, gone)

    assert give_back(client, "these", ["0", gone]) == 0

    assert held_by(client, MAIN) == {}
    assert client.exists(MAIN) == 1
    assert client.exists(FRONT, BELL) == 0


# -- setting aside


def test_a_message_is_set_aside_once_with_its_count_and_reason(client):
    counted, plain = holds(client, "me", MAIN, n="3"), holds(client, "me", MAIN)
    kept = holds(client, "me", MAIN)

    for entry in (counted, plain):
        assert scripts.BURY(client, [LANE], ["0", entry, "unroutable"]) == 1
        assert scripts.BURY(client, [LANE], ["0", entry, "unroutable"]) == 0

    assert inside(client, DEAD) == [
        {"m": "body", "n": "3", "reason": "unroutable"},
        {"m": "body", "n": "0", "reason": "unroutable"},
    ]
    assert held_by(client, MAIN) == {kept: "me"}
    assert client.xlen(MAIN) == 1
