"""Sessions: their lease, their end, and what others take over of them."""

from __future__ import annotations

import pytest
import redis

from tests.support.waiting import wait_until
from tests.transport.lua.acting import (
    BELL,
    DEAD,
    DUE,
    DYING,
    FRONT,
    HOUR_MS,
    LANE,
    LATER,
    LEASES,
    MAIN,
    OTHER,
    PULSE,
    SESSIONS,
    STEPS,
    audit,
    held_by,
    holds,
    inside,
    join,
    ms_of,
    now_ms,
    promote,
    silence,
    sweep,
    tick,
    timed,
    waits,
)


def test_a_session_joins_with_a_lease_and_its_lanes(client):
    assert join(client, LANE, first="0") == 0
    assert client.keys() == []

    answer, before, after = timed(client, lambda: join(client, LANE, OTHER))
    assert answer == 1
    assert before // 1000 + 5000 <= client.zscore(LEASES, "me") <= after // 1000 + 5000
    assert client.smembers(f"{SESSIONS}me") == {LANE, OTHER}
    assert join(client, "rs:{third}", first="0") == 1
    assert client.scard(f"{SESSIONS}me") == 3


def test_a_tick_renews_a_lease_and_never_makes_one(client):
    assert tick(client) == [0, -1, -1]
    assert client.keys() == [PULSE]

    client.zadd(LEASES, {"me": 1, "other": 10**15})
    [alive, due, over], before, after = timed(client, lambda: tick(client))

    assert (alive, due) == (1, -1)
    assert before // 1000 + 5000 <= client.zscore(LEASES, "me") <= after // 1000 + 5000
    assert over == 5001, "the first moment at which it is over, and not the last of it"
    assert client.zscore(LEASES, "other") == 10**15


def test_a_tick_says_when_there_is_something_to_do(client):
    client.zadd(LEASES, {"dead": 1})
    client.zadd(DUE, {LANE: 1})
    assert tick(client) == [0, 0, 0]

    client.zadd(LEASES, {"dead": now_ms(client) + HOUR_MS})
    client.zadd(DUE, {LANE: now_ms(client) + HOUR_MS})
    _, due, over = tick(client)
    assert HOUR_MS - 60_000 < due <= HOUR_MS
    assert HOUR_MS - 60_000 < over <= HOUR_MS + 1
    client.zadd(DYING, {"gone": 1})
    assert tick(client)[2] == 0


def test_a_tick_says_how_long_ago_the_last_one_was(client):
    assert silence(client) == 0, "there was none"
    client.zadd(LEASES, {"me": now_ms(client) + 5000 - HOUR_MS})

    assert HOUR_MS <= silence(client) < HOUR_MS + 60_000
    assert 0 <= silence(client) < 60_000


def test_leases_go_back_with_the_servers_clock(client):
    """What was written while the clock was an hour ahead: of the dead, and of who lives."""
    before = now_ms(client)
    ahead = before + HOUR_MS
    client.set(PULSE, ahead)
    client.zadd(LEASES, {"dead": ahead + 2000, "living": ahead + 4000})

    assert join(client, LANE) == 1
    assert client.zscore(LEASES, "me") == ahead + 5000, "as all others, until the next tick"
    [alive, _, over] = tick(client, "living")

    after = now_ms(client)
    assert alive == 1
    assert before + 2000 <= client.zscore(LEASES, "dead") <= after + 2000
    assert before + 5000 <= client.zscore(LEASES, "me") <= after + 5000
    assert before + 5000 <= client.zscore(LEASES, "living") <= after + 5000
    assert 0 < over <= 2001
    assert before <= int(client.get(PULSE)) <= after
    assert 0 < client.pttl(PULSE) <= 24 * HOUR_MS

    dead = client.zscore(LEASES, "dead")
    tick(client, "living")
    assert client.zscore(LEASES, "dead") == dead, "once"


def test_what_a_dead_session_held_is_at_the_front_with_its_counts(client):
    client.zadd(LEASES, {"dead": 1, "lives": now_ms(client) + HOUR_MS})
    client.sadd(f"{SESSIONS}dead", LANE)
    plain = holds(client, "dead", MAIN)
    theirs = holds(client, "lives", MAIN)
    for step in STEPS[2:]:
        holds(client, "dead", f"{LANE}:{step}", n="2", r="3", t="44", w="1")

    assert sweep(client) == [10, 0, "dead"]

    assert inside(client, FRONT) == [
        {"m": "body", "n": "1", "r": "0", "t": ms_of(plain), "w": "0"},
        *[{"m": "body", "n": "3", "r": "3", "t": "44", "w": "1"}] * 9,
    ]
    assert held_by(client, MAIN) == {theirs: "lives"}
    assert client.xlen(MAIN) == 1
    assert [it["name"] for it in client.xinfo_consumers(MAIN, "w")] == ["lives"]
    assert client.lrange(BELL, 0, -1) == ["1"]
    assert client.zrange(LEASES, 0, -1) == ["lives"]
    assert sorted(client.keys()) == sorted([MAIN, FRONT, BELL, LEASES])
    assert sweep(client) == [0, 0]


def test_a_sweep_moves_no_more_than_it_may_and_says_that_there_is_more(client):
    client.zadd(LEASES, {"dead": 1})
    client.sadd(f"{SESSIONS}dead", LANE)
    client.lpush(BELL, 1)
    bodies = [str(number) for number in range(5)]
    for body in bodies:
        holds(client, "dead", MAIN, m=body)

    answer, before, after = timed(client, lambda: sweep(client, 2))
    assert answer == [2, 1, "dead"]
    assert before // 1000 <= client.zscore(DYING, "dead") <= after // 1000
    assert len(held_by(client, MAIN)) == 3
    assert client.zrange(DYING, 0, -1) == ["dead"]
    assert sweep(client, 2) == [2, 1]
    assert sweep(client, 2) == [1, 0]

    assert [fields["m"] for fields in inside(client, FRONT)] == bodies
    assert client.exists(DYING, f"{SESSIONS}dead") == 0
    assert client.llen(BELL) == 1


def test_a_sweep_moves_no_more_than_it_may_of_several_streams(client):
    client.zadd(LEASES, {"dead": 1})
    client.sadd(f"{SESSIONS}dead", LANE)
    for stream in (MAIN, MAIN, f"{LANE}:3", f"{LANE}:3", f"{LANE}:3"):
        holds(client, "dead", stream)

    assert sweep(client, 3) == [3, 1, "dead"]

    assert len(held_by(client, f"{LANE}:3")) == 2


@pytest.mark.parametrize("most", [1, 2, 3])
def test_held_messages_that_were_deleted_cost_no_other_one(most, client):
    """Somebody trimmed the stream by hand."""
    client.zadd(LEASES, {"dead": 1})
    client.sadd(f"{SESSIONS}dead", LANE)
    for _ in range(5):
        client.xdel(MAIN, holds(client, "dead", MAIN))
    holds(client, "dead", MAIN, m="kept")

    assert sweep(client, most)[0] == 1

    assert [fields["m"] for fields in inside(client, FRONT)] == ["kept"]
    assert held_by(client, MAIN) == {}


def test_what_is_held_and_no_message_is_set_aside_and_stops_no_take_over(client):
    """Somebody put it there by hand, and took it with the workers' group."""
    client.zadd(LEASES, {"dead": 1})
    client.sadd(f"{SESSIONS}dead", LANE)
    holds(client, "dead", MAIN, m="odd", n="x")
    entry = client.xadd(MAIN, {"x": "y"})
    client.xreadgroup("w", "dead", {MAIN: ">"})
    holds(client, "dead", MAIN, m="good")

    assert sweep(client) == [3, 0, "dead"]

    assert [it["m"] for it in inside(client, FRONT)] == ["good"]
    assert inside(client, DEAD) == [
        {"m": "odd", "n": "0", "reason": "undecodable"},
        {"m": "x y", "n": "0", "reason": "undecodable"},
    ]
    assert held_by(client, MAIN) == {}
    assert entry not in [it for it, _ in client.xrange(MAIN)]


def test_what_is_taken_over_keeps_its_score_for_a_requeue(client):
    client.zadd(LEASES, {"dead": 1})
    client.sadd(f"{SESSIONS}dead", LANE)
    holds(client, "dead", MAIN, s="2.5", t="44")

    sweep(client)

    assert inside(client, FRONT) == [
        {"m": "body", "n": "1", "r": "0", "t": "44", "w": "0", "s": "2.5"}
    ]


def test_a_lane_that_can_not_be_cleared_stops_no_other_one_and_is_tried_again(client):
    client.zadd(LEASES, {"dead": 1, "other": 2})
    client.set(FRONT, "somebody's own")
    for session in ("dead", "other"):
        client.sadd(f"{SESSIONS}{session}", LANE, OTHER)
        holds(client, session, f"{OTHER}:0", m=session)
    entry = holds(client, "dead", MAIN)

    moved, more, *dead, [lane, why] = sweep(client)

    assert (moved, more, dead, lane) == (2, 1, ["dead", "other"], LANE)
    assert "WRONGTYPE" in why
    assert [it["m"] for it in inside(client, f"{OTHER}:f")] == ["dead", "other"]
    assert client.zrange(DYING, 0, -1) == ["dead"]
    assert held_by(client, MAIN) == {entry: "dead"}
    assert sweep(client)[:2] == [0, 0], "no more to do for now"
    client.delete(FRONT)
    assert sweep(client) == [1, 0]
    assert client.exists(DYING) == 0


def test_a_session_that_ends_asks_for_no_more_calls_because_of_one_that_is_stuck(client):
    client.sadd(f"{SESSIONS}stuck", LANE)
    client.set(FRONT, "somebody's own")
    holds(client, "stuck", MAIN)
    assert sweep(client, end="stuck")[1] == 0
    client.sadd(f"{SESSIONS}me", OTHER)

    assert sweep(client, end="me")[:2] == [0, 0]

    assert client.zrange(DYING, 0, -1) == ["stuck"]


def test_a_session_that_ends_itself_is_swept_at_once_and_wakes_another(client):
    """Also where it held nothing: it may have been woken for what it did not take."""
    client.zadd(LEASES, {"me": now_ms(client) + HOUR_MS})
    client.sadd(f"{SESSIONS}me", LANE)

    assert sweep(client, end="me") == [0, 0]

    assert client.keys() == [BELL]
    assert client.lrange(BELL, 0, -1) == ["1"]


def test_a_dead_session_that_held_nothing_wakes_nobody_and_main_streams_stay(client):
    client.zadd(LEASES, {"dead": 1})
    client.sadd(f"{SESSIONS}dead", LANE)
    gone = holds(client, "dead", MAIN)
    client.xdel(MAIN, gone)

    assert sweep(client) == [0, 0, "dead"]

    assert client.keys() == [MAIN]
    assert held_by(client, MAIN) == {}


def test_a_lease_that_ends_this_very_moment_is_not_over_yet(client):
    client.zadd(LEASES, {"me": now_ms(client) + 400})

    wait_until(lambda: sweep(client)[2:] == ["me"], what="the end of the lease")

    assert client.exists(LEASES, DYING) == 0


def test_a_dozen_of_dead_sessions_are_swept_ten_at_a_time(client):
    client.zadd(LEASES, {f"dead{number:02}": number for number in range(1, 13)})

    moved, more, *found = sweep(client)

    assert (moved, more, len(found)) == (0, 0, 10)
    client.zadd(DYING, {f"gone{number:02}": number for number in range(1, 13)})
    moved, more, *found = sweep(client)
    assert (moved, more, found) == (0, 1, ["dead11", "dead12"])
    assert client.zcard(DYING) == 4


def test_a_full_server_lets_keepers_go_on(make_redis):
    """It refuses a script whose first write could need memory."""
    with redis.Redis.from_url(make_redis().url(), decode_responses=True) as client:
        client.zadd(LEASES, {"me": 1})
        client.zadd(DYING, {"dead": 1})
        client.sadd(f"{SESSIONS}dead", LANE)
        holds(client, "dead", MAIN)
        client.zadd(LATER, {"0001|3|0|0|0|later": 1})
        client.zadd(DUE, {LANE: 1})
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            waits(client, MAIN)

        assert join(client, LANE) == 1
        assert tick(client)[0] == 1
        assert promote(client) == [1, -1]
        assert sweep(client) == [1, 0]

        assert [fields["m"] for fields in inside(client, f"{LANE}:3")] == ["later"]
        assert len(inside(client, FRONT)) == 1


def test_what_is_held_under_no_lease_is_handed_to_the_sweep(client):
    client.zadd(LEASES, {"lives": 10**15})
    client.zadd(DYING, {"dying": 1})
    for session in ("lives", "dying", "nobody", "lost"):
        holds(client, session, MAIN)
    for step in ("f", *STEPS[2:]):
        holds(client, f"lost-{step}", f"{LANE}:{step}")
    done = holds(client, "done", MAIN)
    client.xack(MAIN, "w", done)

    found, before, after = timed(client, lambda: audit(client))

    assert found == 11
    lost = {"lost", *(f"lost-{step}" for step in ("f", *STEPS[2:]))}
    assert set(client.zrange(DYING, 0, -1)) == {"dying", *lost}
    assert client.zscore(DYING, "dying") == 1
    assert before // 1000 <= client.zscore(DYING, "lost") <= after // 1000
    assert all(client.smembers(SESSIONS + session) == {LANE} for session in lost)
    left = {it["name"] for it in client.xinfo_consumers(MAIN, "w")}
    assert left == {"lives", "dying", "nobody", "lost"}
    assert audit(client) == 0


def test_who_ends_judges_no_other_session(client):
    """After an outage all leases are over, and only keepers give the living time to renew."""
    client.zadd(LEASES, {"me": 1, "living": 2})
    client.sadd(f"{SESSIONS}living", LANE)
    entry = holds(client, "living", MAIN)

    sweep(client, end="me")

    assert client.zrange(LEASES, 0, -1) == ["living"]
    assert held_by(client, MAIN) == {entry: "living"}
