"""What waits: in a stream, in a place by its score, or for its time."""

from __future__ import annotations

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
    OTHER,
    WAKE,
    fetch,
    inside,
    keep,
    now_ms,
    promote,
    put,
    put_later,
    requeue,
    timed,
    waits,
)

# -- publishing, and what waits for its time


def test_a_message_is_put_into_its_stream_and_one_worker_is_woken(client):
    def put(over: str) -> str:
        return scripts.PUT(client, [LANE], ["3", "body", 0, over, 0, "id"])

    ids = [put("0"), put("1")]

    assert [entry for entry, _ in client.xrange(f"{LANE}:3")] == ids
    assert inside(client, f"{LANE}:3") == [{"m": "body"}, {"m": "body", "w": "1"}]
    assert client.lrange(BELL, 0, -1) == ["1"]
    assert client.ttl(f"{LANE}:3") == client.ttl(BELL) == -1


def test_a_scored_message_is_put_in_its_place(client):
    client.set(f"{LANE}:scored", "0.5")

    place = scripts.PUT(client, [LANE], ["0", "body", HOUR_MS, "1", "7", "name"])

    us, name = place.split(":")
    assert (len(us), name) == (16, "name")
    assert client.zrange(f"{LANE}:z", 0, -1, withscores=True) == [
        (place, 7 + 0.5 * (int(us) // 1_000_000))
    ]
    assert client.hgetall(f"{LANE}:b") == {place: "1|7|body"}
    assert client.hgetall(f"{LANE}:i") == {"name": place}
    assert client.exists(MAIN) == 0
    parts = (":z", ":b", ":i", ":scored", ":bell")
    assert all(HOUR_MS - 60_000 < client.pttl(LANE + part) <= HOUR_MS for part in parts)


def test_a_delayed_message_waits_in_the_order_in_which_it_is_due(client):
    due, before, after = timed(client, lambda: put_later(client))

    [(member, score)] = client.zrange(LATER, 0, -1, withscores=True)
    since, rest = member.split("|", 1)
    assert len(since) == 16
    assert before <= int(since) <= after
    assert due == score == int(since) // 1000 + HOUR_MS
    assert rest == "3|0|0|0|body"
    assert client.zrange(DUE, 0, -1, withscores=True) == [(LANE, due)]
    assert client.lrange(WAKE, 0, -1) == ["1"]
    assert client.ttl(LATER) == -1
    client.set(f"{LANE}:scored", "0")
    put_later(client)
    assert client.zrange(LATER, 0, -1)[1].split("|", 1)[1] == "s7|0|0|0|body"


def test_only_a_message_that_is_due_before_all_others_wakes_a_keeper(client):
    put_later(client, 10_000_000)
    client.delete(WAKE)

    put_later(client, 20_000_000)
    assert client.zscore(DUE, LANE) == client.zrange(LATER, 0, 0, withscores=True)[0][1]
    put_later(client, 15_000_000, lane=OTHER)
    assert client.exists(WAKE) == 0

    for _ in range(2):
        put_later(client, 5_000_000)
        client.zremrangebyrank(LATER, 1, -1)
        put_later(client, 4_000_000)
    assert client.llen(WAKE) == 1


@pytest.mark.parametrize("delay", [0, HOUR_MS])
def test_a_lane_outlives_what_waits_in_it(delay, client):
    put_later(client, delay, 60_000)

    assert delay < client.pttl(LATER) <= delay + 60_000
    assert client.pttl(LATER) > delay + 30_000


def test_neither_a_sooner_message_nor_one_for_now_shortens_the_time_of_a_later_one(client):
    put_later(client, HOUR_MS, 60_000)

    put_later(client, 1000, 60_000)
    assert client.pttl(LATER) > HOUR_MS
    put(client, 60_000)
    assert client.pttl(LATER) > HOUR_MS
    keep(client, 60_000)
    assert client.pttl(LATER) > HOUR_MS


def test_what_waits_for_its_time_is_put_off_with_its_lane(client):
    put_later(client, 1000, 60_000)

    put(client, 600_000)
    assert client.pttl(LATER) > 500_000
    keep(client, 6_000_000)
    assert client.pttl(LATER) > 5_000_000


def test_what_was_requeued_without_a_time_of_its_lane_gets_none_from_a_message_for_now(client):
    put_later(client, HOUR_MS, 0)

    put(client, 60_000)

    assert client.pttl(LATER) == -1


def test_the_last_that_waits_for_its_time_says_how_long_a_lane_in_use_is_kept(client):
    """Its time, and the lane's own from then on."""
    now = now_ms(client)
    client.zadd(LATER, {"first": now + 1000, "last": now + HOUR_MS})

    keep(client, 60_000)

    assert HOUR_MS + 30_000 < client.pttl(LATER) <= HOUR_MS + 60_000


def test_what_is_due_already_is_kept_for_the_lanes_own_time(client):
    client.zadd(LATER, {"due": now_ms(client) - HOUR_MS})

    keep(client, 60_000)

    assert 30_000 < client.pttl(LATER) <= 60_000


def test_a_lane_in_use_is_put_off_whole_and_never_shortened(client):
    waits(client, MAIN)
    waits(client, FRONT)
    client.pexpire(FRONT, HOUR_MS)

    keep(client, 60_000)

    assert 30_000 < client.pttl(MAIN) <= 60_000
    assert client.pttl(FRONT) > 60_000
    assert client.exists(LATER) == 0


def test_what_is_due_comes_to_its_stream_with_what_it_is_known_by(client):
    client.zadd(LATER, {"0001|3|0|0|0|a|b": 1, "0002|f|2|1|55|again": 2, "0003|f|0|0|0|late": 1e15})
    client.zadd(DUE, {LANE: 1})

    moved, _ = promote(client)

    assert moved == 2
    assert inside(client, f"{LANE}:3") == [{"m": "a|b", "w": "1"}]
    assert inside(client, FRONT) == [{"m": "again", "n": "2", "r": "1", "t": "55", "w": "1"}]
    assert client.zrange(LATER, 0, -1) == ["0003|f|0|0|0|late"]
    assert client.zrange(DUE, 0, -1, withscores=True) == [(LANE, 1e15)]
    assert client.lrange(BELL, 0, -1) == ["1"]


def test_nothing_is_due_and_nothing_is_woken(client):
    assert promote(client) == [0, -1]
    later = now_ms(client) + HOUR_MS
    client.zadd(DUE, {LANE: later})
    client.zadd(LATER, {"0001|f|0|0|0|body": later})

    moved, due_in = promote(client)

    assert moved == 0
    assert HOUR_MS - 60_000 < due_in <= HOUR_MS
    assert client.exists(BELL, FRONT) == 0
    client.delete(LATER)
    client.zadd(DUE, {LANE: 1})
    assert promote(client) == [0, -1]
    assert client.keys() == []


def test_no_more_is_promoted_than_wanted(client):
    for lane in (LANE, OTHER):
        client.zadd(f"{lane}:d", {f"000{number}|0|0|0|0|{number}": number for number in range(3)})
        client.zadd(DUE, {lane: 1})

    assert promote(client, 2) == [2, 0]
    assert client.xlen(f"{OTHER}:0") + client.xlen(MAIN) == 2
    assert promote(client, 2) == [2, 0]
    assert promote(client, 5) == [2, -1]
    assert [fields["m"] for fields in inside(client, MAIN)] == ["0", "1", "2"]
    assert client.exists(DUE, LATER, f"{OTHER}:d") == 0
    assert client.llen(BELL) == 1


def test_what_is_wanted_is_counted_over_all_lanes_and_each_is_rung_for(client):
    client.zadd(f"{OTHER}:d", {"0001|0|0|0|0|x": 1})
    client.zadd(LATER, {f"000{number}|0|0|0|0|{number}": number for number in range(5)})
    client.zadd(DUE, {OTHER: 1, LANE: 2})

    assert promote(client, 3) == [3, 0]

    assert (client.xlen(f"{OTHER}:0"), client.xlen(MAIN)) == (1, 2)
    assert client.llen(f"{OTHER}:bell") == client.llen(BELL) == 1


def test_a_due_message_of_a_scored_lane_gets_its_place(client):
    bodies = ['{"headers": {"id": "x"}}', '{"headers": {"id": "x"}}', "no json", '{"headers": 1}']
    client.set(f"{LANE}:scored", "2")
    members = {f"000{n}|s1.5|0|0|0|{body}": n + 1 for n, body in enumerate(bodies)}
    client.zadd(LATER, members)
    client.zadd(DUE, {LANE: 1})

    assert promote(client) == [4, -1]

    kept = client.hgetall(f"{LANE}:b")
    assert sorted(kept.values()) == sorted(f"1|1.5|{body}" for body in bodies)
    assert client.zcard(f"{LANE}:z") == 4
    names = client.hgetall(f"{LANE}:i")
    assert sorted(names) == ["unnamed", "x"]
    for place, score in client.zrange(f"{LANE}:z", 0, -1, withscores=True):
        assert place in kept
        assert score == 1.5 + 2 * int(place[:10])
    [us] = {place[:16] for place in kept}
    assert set(kept) == {f"{us}:x", f"{us}:x+", f"{us}:unnamed", f"{us}:unnamed+"}
    assert names == {"x": f"{us}:x+", "unnamed": f"{us}:unnamed+"}


def test_what_comes_back_to_a_scored_lane_keeps_its_counts_and_its_age(client, alive):
    since = 1_234_567_890_123
    client.set(f"{LANE}:scored", "2")
    client.zadd(LATER, {f'0001|s1.5|3|2|{since}|{{"headers": {{"id": "x"}}}}': 1})
    client.zadd(DUE, {LANE: 1})

    assert promote(client) == [1, -1]

    place = f"{since}000:x"
    body = '{"headers": {"id": "x"}}'
    assert client.zrange(f"{LANE}:z", 0, -1, withscores=True) == [(place, 1.5 + 2 * 1_234_567_890)]
    assert client.hgetall(f"{LANE}:b") == {place: f"1|1.5|3|2|{since}|{body}"}
    assert scripts.REPRIORITISE(client, [LANE], ["x", "7"]) == 1
    assert client.hgetall(f"{LANE}:b") == {place: f"1|7|3|2|{since}|{body}"}

    [_, _, step, entry, *rest] = fetch(client)

    assert (step, rest) == ("0", ["3", "2", str(since), "1", body])
    assert inside(client, MAIN) == [
        {"m": body, "w": "1", "s": "7", "t": str(since), "n": "3", "r": "2"}
    ]
    assert requeue(client, entry) == [1, 3, 200]


@pytest.mark.parametrize("id", ["null", "true", "false", '{"a": 1}', "[]"])
def test_an_id_that_is_no_name_stops_no_message(id, client):
    body = f'{{"headers": {{"id": {id}}}}}'
    client.zadd(LATER, {f"0001|s1|0|0|0|{body}": 1})
    client.zadd(f"{OTHER}:d", {"0001|0|0|0|0|good": 2})
    client.zadd(DUE, {LANE: 1, OTHER: 2})

    assert promote(client) == [2, -1]

    assert list(client.hgetall(f"{LANE}:b").values()) == [f"1|1|{body}"]
    assert inside(client, f"{OTHER}:0") == [{"m": "good", "w": "1"}]


def test_a_number_is_a_name_as_for_whom_puts_it_there_at_once(client):
    client.zadd(LATER, {'0001|s1|0|0|0|{"headers": {"id": 17}}': 1})
    client.zadd(DUE, {LANE: 1})

    promote(client)

    assert client.hkeys(f"{LANE}:i") == ["17"]


@pytest.mark.parametrize("score", ["nan", "-nan", "", "soon"])
def test_a_score_that_is_no_number_counts_as_zero(score, client):
    client.set(f"{LANE}:scored", "1")
    client.zadd(LATER, {f"0001|s{score}|0|0|0|body": 1})
    client.zadd(DUE, {LANE: 1})

    assert promote(client) == [1, -1]

    [(place, points)] = client.zrange(f"{LANE}:z", 0, -1, withscores=True)
    assert points == int(place[:10])
    assert client.hvals(f"{LANE}:b") == ["1|0|body"]


def test_what_is_no_delayed_message_is_set_aside_and_the_next_ones_come(client):
    client.zadd(LATER, {"0001|f|-9223372036854775808|1|5|huge": 1, "junk": 2, "0002|0|0|0|0|x": 3})
    client.zadd(DUE, {LANE: 1})

    assert promote(client) == [3, -1]

    assert inside(client, MAIN) == [{"m": "x", "w": "1"}]
    assert inside(client, DEAD) == [
        {"m": "0001|f|-9223372036854775808|1|5|huge", "n": "0", "reason": "undecodable"},
        {"m": "junk", "n": "0", "reason": "undecodable"},
    ]
    assert client.exists(LATER) == 0


def test_what_can_not_be_handed_out_waits_a_minute_and_the_next_ones_come(client):
    """A key of another kind stands in its way."""
    now = now_ms(client)
    client.set(f"{LANE}:3", "somebody's own")
    client.zadd(LATER, {"0001|3|0|0|0|stuck": 1, "0002|0|0|0|0|free": 2})
    client.zadd(f"{OTHER}:d", {"0001|0|0|0|0|other": 1})
    client.zadd(DUE, {LANE: 1, OTHER: 2})

    moved, due_in, [lane, why] = promote(client)

    assert moved == 2
    assert 0 < due_in <= 60_000
    assert lane == LANE
    assert "WRONGTYPE" in why
    assert inside(client, MAIN) == [{"m": "free", "w": "1"}]
    assert inside(client, f"{OTHER}:0") == [{"m": "other", "w": "1"}]
    [(member, due)] = client.zrange(LATER, 0, -1, withscores=True)
    assert member == "0001|3|0|0|0|stuck"
    assert now + 60_000 <= due <= now_ms(client) + 60_000
    assert client.zscore(DUE, LANE) == due


def test_a_lane_that_can_not_be_looked_at_waits_a_minute_and_the_others_come(client):
    now = now_ms(client)
    client.set(LATER, "somebody's own")
    client.zadd(f"{OTHER}:d", {"0001|0|0|0|0|other": 1})
    client.zadd(DUE, {LANE: 1, OTHER: 2})

    moved, _, [lane, why] = promote(client)

    assert (moved, lane) == (1, LANE)
    assert "WRONGTYPE" in why
    assert inside(client, f"{OTHER}:0") == [{"m": "other", "w": "1"}]
    assert now + 60_000 <= client.zscore(DUE, LANE) <= now_ms(client) + 60_000


# -- moving from stock


def test_what_a_stock_worker_held_is_moved_to_the_front_or_waits_for_its_time(client):
    def accept(tag: str, delay: int) -> int:
        keys = [LANE, "unacked", "unacked_index", DUE, WAKE]
        return scripts.ACCEPT_UNACKED(client, keys, [tag, "body", delay])

    for tag in ("now", "again", "later", "kept"):
        client.hset("unacked", tag, "x")
        client.zadd("unacked_index", {tag: 1})

    assert accept("gone", 0) == 0
    assert accept("now", 0) == accept("again", 0) == 1
    assert inside(client, FRONT) == [{"m": "body", "n": "1"}] * 2
    assert client.lrange(BELL, 0, -1) == ["1"]
    client.delete(BELL)

    answer, before, after = timed(client, lambda: accept("later", HOUR_MS))
    assert answer == 1
    [(member, due)] = client.zrange(LATER, 0, -1, withscores=True)
    since, rest = member.split("|", 1)
    assert len(since) == 16
    assert before <= int(since) <= after
    assert due == int(since) // 1000 + HOUR_MS
    assert rest == "f|0|0|0|body"
    assert client.zrange(DUE, 0, -1, withscores=True) == [(LANE, due)]
    assert client.lrange(WAKE, 0, -1) == ["1"]
    assert client.hkeys("unacked") == client.zrange("unacked_index", 0, -1) == ["kept"]
    client.zadd(DUE, {LANE: 1})
    accept("kept", HOUR_MS)
    assert client.zscore(DUE, LANE) == 1
    assert client.llen(WAKE) == 1
    assert client.exists(BELL) == 0
