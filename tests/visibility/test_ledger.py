"""The scripts one by one: what each changes, and what it must not touch."""

from __future__ import annotations

import json

import pytest
import redis

from celery_idem.stores.redis.scripts import ScriptRunner
from celery_idem.visibility.ledger import ASIDE, Ledger, Redelivery, Times
from tests.support.waiting import wait_until

SHORT = Times(lease_s=0.3)


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def runner(client):
    return ScriptRunner(client, patience_s=0, spare=1)


@pytest.fixture
def ledger():
    return Ledger(Times())


@pytest.fixture
def short():
    return Ledger(SHORT)


def server_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return seconds * 1000 + micros // 1000


def over(ledger: Ledger, client: redis.Redis, holder: str) -> bool:
    """Whether another keeper's look finds the holder's lease over."""
    return holder in ledger.tick(client, [])[1]


def test_a_held_delivery_stands_a_day_ahead_in_kombus_index(ledger, client, runner):
    ledger.hold(runner, "h", "t1", "record")

    assert client.hgetall("unacked") == {b"t1": b"record"}
    seconds, _ = client.time()
    assert client.zscore("unacked_index", "t1") == pytest.approx(seconds + 86_400, abs=5)


def test_the_first_delivery_of_a_holder_says_that_it_had_no_lease(ledger, client, runner):
    answers = [ledger.hold(runner, "h", tag, "r") for tag in ("t1", "t2", "t3")]

    assert answers == [True, False, False]


def test_settling_leaves_nothing_but_the_holders_lease(ledger, client, runner):
    for number in range(1200):
        ledger.hold(runner, "h", f"t{number}", "r")

    there = ledger.settle(runner, "h", [f"t{number}" for number in range(1200)])

    assert there == 1200
    assert client.keys("*") == [ledger.holders.encode()]


def test_settling_what_is_gone_touches_nothing_else(ledger, client, runner):
    ledger.hold(runner, "h", "t1", "r")

    assert ledger.settle(runner, "h", ["t0"]) == 0
    assert client.hexists("unacked", "t1")


def test_a_holder_that_is_renewed_is_never_over(short, client, runner):
    short.hold(runner, "h", "t1", "r")
    began = server_ms(client)
    seen = []

    def three_leases_passed() -> bool:
        lost, expired = short.tick(client, ["h"])
        seen.extend(lost + expired)
        return server_ms(client) > began + 3000 * SHORT.lease_s

    wait_until(three_leases_passed)

    assert seen == []


def test_a_holder_that_nobody_renews_is_over_for_everybody(short, client, runner):
    short.hold(runner, "h", "t1", "r")

    wait_until(lambda: over(short, client, "h"))


def test_a_lease_is_judged_by_its_own_length_not_by_the_judges(short, ledger, client, runner):
    ledger.hold(runner, "long", "t1", "r")
    short.hold(runner, "short", "t2", "r")

    wait_until(lambda: over(short, client, "short"))

    assert not over(short, client, "long")


def test_after_an_outage_living_holders_get_time_to_come_back(client, runner):
    times = Times(lease_s=0.9)
    ledger = Ledger(times)
    ledger.tick(client, [])
    wait_until(lambda: ledger.tick(client, []) and server_ms(client) > grace_end(client, ledger))
    ledger.hold(runner, "h", "t1", "r")
    deadline = int(client.zscore(ledger.holders, "h"))
    # nobody ticks: for all that anybody knows, the server was away
    wait_until(lambda: server_ms(client) > deadline + 1000 * times.quiet_s)

    lost, expired = ledger.tick(client, [])

    assert (lost, expired) == ([], [])
    assert ledger.tick(client, ["h"]) == ([], []), "it is back in time"
    wait_until(lambda: ledger.tick(client, ["h"]) and server_ms(client) > grace_end(client, ledger))
    assert ledger.tick(client, []) == ([], [])


def test_leases_go_back_with_the_servers_clock(client, runner):
    """What the clock wrote an hour ahead of now: of the dead, and of who lives."""
    ledger = Ledger(Times(lease_s=0.9))
    ledger.tick(client, [])
    for holder in ("dead", "living"):
        ledger.hold(runner, holder, f"t-{holder}", "r")
        client.zincrby(ledger.holders, 3_600_000, holder)
    ahead = server_ms(client) + 3_600_000
    client.hset(ledger.pulse, mapping={"at": ahead, "grace": ahead})

    lost, expired = ledger.tick(client, ["living"])

    assert (lost, expired) == ([], []), "who lives gets time to say so"
    wait_until(lambda: ledger.tick(client, ["living"]) == ([], ["dead"]))


def grace_end(client: redis.Redis, ledger: Ledger) -> int:
    return int(client.hget(ledger.pulse, "grace") or 0)


def test_taking_over_moves_everything_and_tells_the_old_holder(short, client, runner):
    for number in range(3):
        short.hold(runner, "dead", f"t{number}", "r")
    wait_until(lambda: over(short, client, "dead"))

    assert short.take_over(client, "dead", "taker") == 3

    assert short.take_over(client, "dead", "late") == -1
    assert short.tick(client, ["dead"])[0] == ["dead"]
    assert [tag for tag, _ in short.peek(client, "taker", 10)] == ["t2", "t1", "t0"]


def test_a_renewed_lease_cannot_be_taken_over(short, client, runner):
    short.hold(runner, "h", "t1", "r")
    wait_until(lambda: over(short, client, "h"))
    short.tick(client, ["h"])

    assert short.take_over(client, "h", "taker") == -1
    assert client.exists(short.held("h"))


def test_what_a_taker_that_died_had_taken_is_taken_again(short, client, runner):
    short.hold(runner, "dead", "t1", "r")
    wait_until(lambda: over(short, client, "dead"))
    short.take_over(client, "dead", "taker")

    wait_until(lambda: over(short, client, "taker"))

    assert short.take_over(client, "taker", "next") == 1


def test_a_redelivery_is_pushed_and_removed_in_one_step(ledger, client, runner):
    for tag in ("t1", "t2"):
        ledger.hold(runner, "h", tag, "r")
    client.lpush("q", "waiting")
    items = [
        Redelivery("t1", "first", ("q",), front=True),
        Redelivery("t2", "last", ("q", "q2"), front=False),
    ]

    assert ledger.redeliver(client, "h", items, retire=True) == 2

    assert client.lrange("q", 0, -1) == [b"last", b"waiting", b"first"]
    assert client.lrange("q2", 0, -1) == [b"last"]
    assert sorted(client.keys("*")) == [b"q", b"q2"]


def test_only_what_is_still_recorded_under_the_holder_is_redelivered(ledger, client, runner):
    ledger.hold(runner, "h", "acked", "r")
    ledger.hold(runner, "other", "theirs", "r")
    ledger.settle(runner, "h", ["acked"])
    items = [Redelivery(tag, "p", ("q",), front=True) for tag in ("acked", "theirs", "never")]

    assert ledger.redeliver(client, "h", items, retire=False) == 0

    assert client.llen("q") == 0
    assert client.hexists("unacked", "theirs")


def test_an_ack_between_take_over_and_redelivery_wins(short, client, runner):
    short.hold(runner, "dead", "t1", "r")
    wait_until(lambda: over(short, client, "dead"))
    short.take_over(client, "dead", "taker")

    assert short.settle(runner, "dead", ["t1"]) == 1

    item = Redelivery("t1", "p", ("q",), front=True)
    assert short.redeliver(client, "taker", [item], retire=True) == 0
    assert client.llen("q") == 0


def test_a_queue_of_the_wrong_type_costs_no_message(ledger, client, runner):
    ledger.hold(runner, "h", "t1", "r")
    client.set("q", "not a list")

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        ledger.redeliver(client, "h", [Redelivery("t1", "p", ("q",), front=True)], retire=True)

    assert client.hget("unacked", "t1") == b"r"
    assert [tag for tag, _ in ledger.peek(client, "h", 10)] == ["t1"]


def test_what_has_no_queue_is_set_aside_and_comes_up_again(short, client, runner):
    short.hold(runner, "h", "t1", "r")

    short.strand(client, "h", ["t1"])

    assert client.hget("unacked", "t1") == b"r"
    assert not client.exists(short.held("h"))
    wait_until(lambda: over(short, client, ASIDE))


def test_long_held_deliveries_are_moved_ahead_in_batches(client, runner):
    ledger = Ledger(Times(lease_s=30, horizon_s=10))
    for number in range(5):
        ledger.hold(runner, "h", f"t{number}", "r")
    client.zadd(ledger.held("h"), {f"t{number}": 1000 + number for number in range(5)})
    client.zadd("unacked_index", {f"t{number}": 1 for number in range(5)})
    seconds, _ = client.time()

    moved = [ledger.refresh(client, "h", 3) for _ in range(3)]

    assert moved == [3, 2, 0]
    assert all(
        score >= seconds + 9 for _, score in client.zrange("unacked_index", 0, -1, withscores=True)
    )


def test_two_apps_on_one_database_do_not_see_each_others_holders(client, runner):
    ours = Ledger(SHORT, global_keyprefix="a:", unacked_key="un", unacked_index_key="un_index")
    theirs = Ledger(SHORT, global_keyprefix="b:", unacked_key="un", unacked_index_key="un_index")
    third = Ledger(SHORT, unacked_key="other", unacked_index_key="other_index")
    ours.hold(runner, "h", "t1", "r")
    wait_until(lambda: over(ours, client, "h"))

    for stranger in (theirs, third):
        stranger.tick(client, [])
        client.hset(stranger.pulse, "grace", 0)
        assert stranger.tick(client, []) == ([], [])
    assert sorted(k.decode() for k in client.keys("a:*")) == [
        "a:idem:visibility:un:held:h",
        "a:idem:visibility:un:holders",
        "a:idem:visibility:un:pulse",
        "a:un",
        "a:un_index",
    ]


def test_a_server_that_forgot_its_scripts_is_told_them_again(ledger, client, runner):
    client.script_flush()

    ledger.hold(runner, "h", "t1", json.dumps([{}, "", "q"]))

    assert client.hlen("unacked") == 1
