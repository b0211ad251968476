"""The scripts' times and edges: every score that they write, by the server's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from celery_idem.stores.redis.scripts import ScriptRunner
from celery_idem.visibility.ledger import ASIDE, Ledger, Redelivery, Times, dropped

TIMES = Times(lease_s=10, horizon_s=1000)
LEASE_MS, HORIZON_MS = 10_000, 1_000_000
INDEX = "unacked_index"


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def ledger():
    return Ledger(TIMES)


@pytest.fixture
def hold(redis_url, ledger) -> Callable[..., None]:
    runner = ScriptRunner(redis.Redis.from_url(redis_url), patience_s=0, spare=1)

    def hold(holder: str, *tags: str) -> None:
        for tag in tags:
            ledger.hold(runner, holder, tag, "record")

    return hold


def now_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return seconds * 1000 + micros // 1000


class Between:
    """Now, in ms: any moment between the entry and the end of the block."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def __enter__(self) -> Between:
        self.begun = now_ms(self._client)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.ended = now_ms(self._client)

    def holds(self, ms: float | None, ahead_ms: float = 0) -> bool:
        return ms is not None and self.begun <= round(ms - ahead_ms) <= self.ended


def over(client: redis.Redis, ledger: Ledger, *mine: str) -> Any:
    """A look where no grace is given."""
    client.hset(ledger.pulse, mapping={"at": now_ms(client), "grace": 0})
    return ledger.tick(client, mine)


def test_a_delivery_is_held_from_now_on_under_a_whole_lease(ledger, client, hold):
    with Between(client) as now:
        hold("h", "t1")

    assert now.holds(client.zscore(INDEX, "t1") * 1000, HORIZON_MS)
    assert now.holds(client.zscore(ledger.held("h"), "t1"))
    assert now.holds(client.zscore(ledger.holders, "h"), LEASE_MS)


def test_a_tick_renews_for_a_whole_lease_and_makes_none(ledger, client):
    client.zadd(ledger.holders, {"h": 1, "other": 2})

    with Between(client) as now:
        lost, expired = over(client, ledger, "h", "gone")

    assert (lost, expired) == (["gone"], ["other"])
    assert now.holds(client.zscore(ledger.holders, "h"), LEASE_MS)
    assert client.zrange(ledger.holders, 0, -1) == ["other", "h"]


def test_a_tick_after_a_silence_gives_grace_and_one_in_time_none(ledger, client):
    quiet, grace = round(TIMES.quiet_s * 1000), round(TIMES.grace_s * 1000)
    client.zadd(ledger.holders, {"h": 1})
    with Between(client) as now:
        assert ledger.tick(client, []) == ([], [])  # nobody ever ticked
    assert now.holds(float(client.hget(ledger.pulse, "at")))
    assert now.holds(float(client.hget(ledger.pulse, "grace")), grace)
    assert 86_000_000 < client.pttl(ledger.pulse) <= 86_400_000

    client.hset(ledger.pulse, mapping={"at": now_ms(client) - quiet - 100, "grace": 0})
    with Between(client) as now:
        assert ledger.tick(client, []) == ([], [])
    ends = float(client.hget(ledger.pulse, "grace"))
    assert now.holds(ends, grace)
    assert ledger.tick(client, []) == ([], [])
    assert float(client.hget(ledger.pulse, "grace")) == ends, "it ends, however often one looks"
    assert over(client, ledger) == ([], ["h"])
    assert client.hget(ledger.pulse, "grace") == "0"


def test_a_look_finds_only_so_many(ledger, client):
    client.zadd(ledger.holders, {f"h{number:02}": number for number in range(12)})

    assert over(client, ledger)[1] == [f"h{number:02}" for number in range(10)]


def test_a_taker_has_a_whole_lease_on_all_that_the_dead_held(ledger, client, hold):
    hold("dead", "t1", "t2")
    client.zadd(ledger.holders, {"dead": now_ms(client) - 1})

    with Between(client) as now:
        assert ledger.take_over(client, "dead", "taker") == 2

    assert client.zrange(ledger.holders, 0, -1) == ["taker"]
    assert now.holds(client.zscore(ledger.holders, "taker"), LEASE_MS)
    assert client.exists(ledger.held("dead")) == 0


def test_a_dead_holder_of_nothing_is_forgotten(ledger, client):
    client.zadd(ledger.holders, {"dead": 1, "lives": now_ms(client) + 60_000})

    assert ledger.take_over(client, "dead", "taker") == 0
    assert ledger.take_over(client, "lives", "taker") == -1

    assert client.zrange(ledger.holders, 0, -1) == ["lives"]


def test_what_is_put_back_renews_the_holder_that_still_holds(ledger, client, hold):
    hold("h", "t1", "t2")
    client.zadd(ledger.holders, {"h": 1})

    with Between(client) as now:
        item = Redelivery("t1", "p", ("q",), front=True)
        assert ledger.redeliver(client, "h", [item], retire=True) == 1

    assert now.holds(client.zscore(ledger.holders, "h"), LEASE_MS)
    assert client.zrange(ledger.held("h"), 0, -1) == client.hkeys("unacked") == ["t2"]
    assert client.zrange(INDEX, 0, -1) == ["t2"]


@pytest.mark.parametrize("retire", [True, False])
def test_a_holder_is_forgotten_only_when_it_retires_and_never_made(retire, ledger, client, hold):
    hold("h", "t1")
    item = Redelivery("t1", "p", ("q",), front=True)

    ledger.redeliver(client, "h", [item], retire=retire)
    ledger.redeliver(client, "other", [item], retire=False)

    assert client.zrange(ledger.holders, 0, -1) == ([] if retire else ["h"])
    assert client.lrange("q", 0, -1) == ["p"]


def test_a_tag_is_dropped_without_a_delivery_and_its_record_stays_where_it_is(ledger, client, hold):
    hold("h", "t1", "t2")
    client.hdel("unacked", "t2")

    item = Redelivery("t2", "p", ("q",), front=True)
    assert ledger.redeliver(client, "h", [dropped("t1"), item], retire=True) == 0

    assert client.hkeys("unacked") == ["t1"]
    assert client.exists("q", INDEX, ledger.held("h"), ledger.holders) == 0


def test_a_delivery_without_a_queue_keeps_its_age_and_waits_a_pause(ledger, client, hold):
    hold("h", "t1", "t2")
    client.zadd(ledger.held("h"), {"t1": 1234})
    client.zadd(INDEX, {"t1": 1})
    client.zrem(INDEX, "t2")

    with Between(client) as now:
        ledger.strand(client, "h", ["t1", "t2", "never"])

    assert client.exists(ledger.held("h")) == 0
    assert client.zscore(ledger.held(ASIDE), "t1") == 1234
    assert client.zrange(ledger.held(ASIDE), 0, -1) == ["t1", "t2"]
    assert now.holds(client.zscore(INDEX, "t1") * 1000, HORIZON_MS)
    assert client.zrange(INDEX, 0, -1) == ["t1"], "what was acked meanwhile gets no new score"
    assert now.holds(client.zscore(ledger.holders, ASIDE), TIMES.aside_s * 1000)


def test_nothing_set_aside_makes_no_holder(ledger, client, hold):
    ledger.strand(client, "h", ["never"])
    assert client.keys() == []

    hold("h", "t1")
    ledger.strand(client, "h", ["t1"])
    assert client.exists(ledger.held(ASIDE)) == 1
    assert client.zscore(ledger.holders, ASIDE)


def test_a_long_held_delivery_is_moved_a_horizon_ahead_of_now(ledger, client, hold):
    hold("h", "old", "young", "acked")
    half = HORIZON_MS / 2
    now = now_ms(client)
    held = {"old": now - half - 100, "acked": 1, "young": now - half + 60_000}
    client.zadd(ledger.held("h"), held)
    client.zadd(INDEX, {"old": 1, "young": 2})
    client.zrem(INDEX, "acked")

    with Between(client) as moment:
        assert ledger.refresh(client, "h", 10) == 2

    assert moment.holds(client.zscore(INDEX, "old") * 1000, HORIZON_MS)
    assert moment.holds(client.zscore(ledger.held("h"), "old"))
    assert client.zrange(INDEX, 0, -1, withscores=True)[0] == ("young", 2)
    assert client.zscore(INDEX, "acked") is None
    assert client.zscore(ledger.held("h"), "young") == held["young"]
