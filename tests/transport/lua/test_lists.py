"""To kombu's lists and back, other scores, and what a purge removes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_idem.transport import scripts
from tests.transport.lua.acting import (
    BELL,
    DEAD,
    DUE,
    FRONT,
    HOUR_MS,
    LANE,
    LATER,
    MAIN,
    STEPS,
    WAKE,
    held_by,
    holds,
    inside,
    now_ms,
    timed,
    waits,
)

# -- from kombu's lists


def accept(client, most: int = 100, lists=("q", "q\x06\x163"), steps=("0", "3")) -> list[int]:
    return scripts.ACCEPT(client, [LANE, DUE, WAKE, *lists], [most, *steps])


def with_eta(eta: str) -> str:
    return f'{{"headers": {{"eta": "{eta}"}}}}'


def test_lists_are_moved_oldest_first_each_to_its_step(client):
    client.lpush("q", "1", "2")
    client.lpush("q\x06\x163", "3", "4")

    assert accept(client, 3) == [3, 0]

    assert [it["m"] for it in inside(client, MAIN)] == ["1", "2"]
    assert inside(client, f"{LANE}:3") == [{"m": "3"}]
    assert client.lrange("q\x06\x163", 0, -1) == ["4"]
    assert client.lrange(BELL, 0, -1) == ["1"]
    assert accept(client) == [1, 0]
    assert client.llen(BELL) == 1
    assert accept(client) == [0, 0]


@pytest.mark.parametrize(
    "zone", [timezone.utc, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=7))]
)
def test_what_is_not_due_waits_for_its_time(zone, client):
    now = now_ms(client)
    due_at = now // 1000 + 3600
    eta = datetime.fromtimestamp(due_at, zone).isoformat()
    client.lpush("q\x06\x163", with_eta(eta), with_eta("2020-01-01T00:00:00+00:00"))

    answer, before, after = timed(client, lambda: accept(client))

    assert answer == [2, 1]
    [(member, due)] = client.zrange(LATER, 0, -1, withscores=True)
    assert due == due_at * 1000
    since, rest = member.split("|", 1)
    assert len(since) == 16
    assert before <= int(since) <= after
    assert rest == "3|0|0|0|" + with_eta(eta)
    assert client.zrange(DUE, 0, -1, withscores=True) == [(LANE, due)]
    assert client.lrange(WAKE, 0, -1) == client.lrange(BELL, 0, -1) == ["1"]
    client.zadd(DUE, {LANE: 1})
    client.lpush("q", with_eta(eta))
    client.delete(BELL)
    assert accept(client) == [1, 1]
    assert client.zscore(DUE, LANE) == 1
    assert client.llen(WAKE) == 1
    assert client.exists(BELL) == 0


@pytest.mark.parametrize(
    ("eta", "due"),
    [
        ("2400-02-29T12:34:56.789Z", "2400-02-29T12:34:56.789"),
        ("2401-03-01T00:00:00Z", "2401-03-01T00:00:00"),
        ("2400-12-31 23:59:59+0000", "2400-12-31T23:59:59"),
        ("2100-02-28T00:00:00+00:00", "2100-02-28T00:00:00"),
        ("2100-03-01T00:00:00-01:30", "2100-03-01T01:30:00"),
        ("2101-01-01T00:00:00+02:00", "2100-12-31T22:00:00"),
        ("2196-02-29T00:00:00.0001Z", "2196-02-29T00:00:00.001"),
    ],
)
def test_a_time_is_read_in_every_year_and_zone(eta, due, client):
    client.lpush("q", with_eta(eta))

    assert accept(client) == [1, 1]

    [(_, score)] = client.zrange(LATER, 0, -1, withscores=True)
    expected = datetime.fromisoformat(due).replace(tzinfo=timezone.utc)
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert score == round((expected - epoch) / timedelta(milliseconds=1))


@pytest.mark.parametrize(
    "body",
    [
        with_eta("2400-01-01T00:00:00"),  # no zone: its worker knows which
        with_eta("2400-01-01T00:00:00+1:00"),
        with_eta("soon"),
        '{"headers": {"eta": null}}',
        '{"headers": 1, "eta": "2400-01-01T00:00:00Z"}',
        '[1, "eta", {"eta": "2400-01-01T00:00:00Z"}]',
        'no json "eta": "2400-01-01T00:00:00Z"',
        '"\\"eta\\": \\"2400-01-01T00:00:00Z\\""',
        '{"eta": "x", "headers": {"eta": 5}}',
    ],
)
def test_a_time_that_is_not_sure_is_left_to_the_worker(body, client):
    client.lpush("q", body)

    assert accept(client) == [1, 0]

    assert inside(client, MAIN) == [{"m": body}]
    assert client.exists(DUE, LATER, WAKE) == 0


# -- back to kombu's lists


def roll_back(client, most: int = 100) -> list[int]:
    keys = [LANE, DUE, "front", "q", "q3"]
    return scripts.ROLL_BACK(client, keys, [most, "0", "f", "0", "3"])


def test_what_waits_goes_back_to_the_lists_and_what_is_held_stays(client):
    held = holds(client, "me", MAIN, m="held")
    for stream, bodies in ((MAIN, "12"), (FRONT, "fg"), (f"{LANE}:3", "3")):
        for body in bodies:
            waits(client, stream, m=body)

    assert roll_back(client, 2) == [2, 0]
    assert client.lrange("front", 0, -1) == ["g", "f"]
    assert roll_back(client, 2) == [2, 0]
    assert roll_back(client) == [1, 0]

    assert client.lrange("q", 0, -1) == ["2", "1"]
    assert client.lrange("q3", 0, -1) == ["3"]
    assert held_by(client, MAIN) == {held: "me"}
    assert client.xlen(MAIN) == 1
    assert roll_back(client) == [0, 0]


def test_what_holds_no_message_is_set_aside_and_counts(client):
    client.xadd(MAIN, {"x": "y", "z": "1"})
    waits(client, MAIN, m="good")
    client.xadd(MAIN, {"x": "y"})

    assert roll_back(client, 2) == [1, 1]
    assert roll_back(client, 2) == [0, 1]

    assert inside(client, DEAD)[0] == {"m": "x y z 1", "reason": "undecodable"}
    assert client.lrange("q", 0, -1) == ["good"]
    assert client.xlen(MAIN) == 0


@pytest.mark.parametrize("waiting", ["scored", "delayed"])
def test_what_is_set_aside_counts_among_what_may_be_moved(waiting, client):
    client.xadd(MAIN, {"x": "y"})
    for number in range(3):
        if waiting == "scored":
            client.zadd(f"{LANE}:z", {f"{number:016d}:a{number}": number})
        else:
            client.zadd(LATER, {f"0{number}|3|0|0|0|body": number})

    assert roll_back(client, 2) == [1, 1]


def test_scored_and_delayed_messages_go_back_in_their_order(client):
    for number, (name, score) in enumerate((("a", 3), ("b", 1), ("c", 2))):
        id = f"{number:016d}:{name}"
        client.zadd(f"{LANE}:z", {id: score})
        client.hset(f"{LANE}:b", id, f"0|{score}|{name}|")
        client.hset(f"{LANE}:i", name, id)
    client.hdel(f"{LANE}:b", f"{2:016d}:c")
    client.zadd(LATER, {"01|3|0|0|0|late|": 2, "00|s1.5|1|2|3|soon": 1})
    client.zadd(DUE, {LANE: 1, "rs:{other}": 2})

    assert roll_back(client, 2) == [2, 0]
    assert client.lrange("front", 0, -1) == ["b|"]
    assert client.zrange(f"{LANE}:z", 0, -1) == [f"{0:016d}:a"]
    assert roll_back(client, 2) == [2, 0]
    assert client.zscore(DUE, LANE) == 1
    assert roll_back(client) == [1, 0]

    assert client.lrange("front", 0, -1) == ["late|", "soon", "a|", "b|"]
    assert client.zrange(DUE, 0, -1) == ["rs:{other}"]
    assert client.exists(LATER, f"{LANE}:z", f"{LANE}:b", f"{LANE}:i") == 0


def test_what_is_odd_among_scored_and_delayed_messages_is_set_aside(client):
    for number, kept in enumerate(("odd", "1|1|3|2|1234567890123|good")):
        id = f"{number:016d}:a{number}"
        client.zadd(f"{LANE}:z", {id: number})
        client.hset(f"{LANE}:b", id, kept)
    client.zadd(LATER, {"junk": 1, "01|3|0|0|0|late": 2})

    assert roll_back(client) == [2, 2]

    assert client.lrange("front", 0, -1) == ["late", "good"]
    assert [it["m"] for it in inside(client, DEAD)] == ["odd", "junk"]


# -- other scores


def test_another_score_keeps_the_age_and_the_message(client):
    id = f"{1_234_567_890_500_000:016d}:name"
    client.set(f"{LANE}:scored", "0.5")
    client.zadd(f"{LANE}:z", {id: 1})
    client.hset(f"{LANE}:b", id, "1|1|a|b")
    client.hset(f"{LANE}:i", "name", id)

    assert scripts.REPRIORITISE(client, [LANE], ["name", "-2.5"]) == 1

    assert client.zscore(f"{LANE}:z", id) == -2.5 + 0.5 * 1_234_567_890
    assert client.hget(f"{LANE}:b", id) == "1|-2.5|a|b"
    client.delete(f"{LANE}:scored")
    assert scripts.REPRIORITISE(client, [LANE], ["name", "7"]) == 1
    assert client.zscore(f"{LANE}:z", id) == 7
    assert scripts.REPRIORITISE(client, [LANE], ["other", "7"]) == 0
    client.hdel(f"{LANE}:b", id)
    assert scripts.REPRIORITISE(client, [LANE], ["name", "9"]) == 0
    client.zrem(f"{LANE}:z", id)
    assert scripts.REPRIORITISE(client, [LANE], ["name", "7"]) == 0
    assert client.exists(f"{LANE}:z") == 0


# -- purges


def purge(client, what: str = "waiting") -> int:
    return scripts.PURGE(client, [LANE, DUE], [what, *STEPS])


@pytest.fixture
def full_lane(client) -> None:
    """What waits in it: 1 in each step, 1 later, 1 scored; held: 1 in the main one."""
    holds(client, "me", MAIN)
    for step in STEPS:
        waits(client, f"{LANE}:{step}")
    client.zadd(LATER, {"x": now_ms(client) + HOUR_MS})
    client.zadd(DUE, {LANE: 1, "rs:{other}": 2})
    for part in ("b", "i"):
        client.hset(f"{LANE}:{part}", "id", "x")
    client.zadd(f"{LANE}:z", {"id": 1})
    client.set(f"{LANE}:scored", 0)
    client.lpush(BELL, 1)


def test_a_purge_removes_what_waits_and_nothing_that_is_held(full_lane, client):
    assert purge(client) == 13

    assert len(held_by(client, MAIN)) == client.xlen(MAIN) == 1
    assert sum(client.xlen(f"{LANE}:{step}") for step in STEPS) == 1
    assert client.zrange(DUE, 0, -1) == ["rs:{other}"]
    assert client.get(f"{LANE}:scored") == "0"
    assert client.exists(LATER, BELL, *(f"{LANE}:{part}" for part in "zbi")) == 0
    assert purge(client) == 0


def test_a_lane_that_goes_takes_all_with_it(full_lane, client):
    assert purge(client, "all") == 13

    assert client.keys() == [DUE]
    assert client.zrange(DUE, 0, -1) == ["rs:{other}"]


def test_many_messages_beside_a_held_one_are_removed_in_batches(client):
    holds(client, "me", MAIN)
    for _ in range(1003):
        waits(client, MAIN)

    assert purge(client) == 1003

    assert client.xlen(MAIN) == 1


def test_a_stream_whose_messages_are_all_done_is_emptied_and_stays(client):
    entry = holds(client, "me", MAIN)
    client.xack(MAIN, "w", entry)
    waits(client, MAIN)

    assert purge(client) == 2

    assert client.exists(MAIN) == 1
    assert client.xlen(MAIN) == 0
