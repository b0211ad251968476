"""Leases by worker: who is dead is judged by the server's clock and the worker's own length."""

from __future__ import annotations

import logging
import time

import pytest
import redis
from kombu import Connection, Queue

from celery_idem.transport import scripts
from celery_idem.transport.keeper import REFUSED_PAUSE_S, Keeper
from celery_idem.transport.keys import Keys
from celery_idem.transport.session import Session, Terms
from tests.support.waiting import wait_until
from tests.transport.conftest import APP, streams


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent"])
def test_a_killed_workers_messages_are_taken_over_within_its_lease_and_a_second(
    pool, load_streams_app, effects, start_worker
):
    """C05, S-V2: by an idle worker, in every pool."""
    app = load_streams_app(options={"lease_s": 5})
    doomed = start_worker(f"{APP}:app", pool=pool)
    app.slow.delay("long", 60)
    effects.wait_count("long:start", 1)
    start_worker(f"{APP}:app", pool=pool)

    doomed.kill_tree()
    killed = time.monotonic()
    effects.wait_count("long:start", 2)

    second = effects.lines("long:start")[1]["monotonic"]
    # the lease was renewed up to a third of it before the kill; the start of a task is not ours
    assert second - killed < 5 + 1 + 1
    assert second - killed > 5 * 2 / 3 - 1


def test_a_dead_worker_is_taken_over_though_the_servers_clock_went_back(
    load_streams_app, effects, start_worker, make_redis, clock_skew
):
    """By an hour, after the lease was given; who lives keeps what it runs. The server ends waits by
    the same clock, so that the workers first hear of it when their sockets' patience is over."""
    server = make_redis(env=clock_skew.env)
    app = load_streams_app(
        options={"lease_s": 3, "socket_timeout": 2},
        broker=streams(server.url()),
        backend=server.url(1),
    )
    doomed = start_worker(f"{APP}:app", concurrency=1)
    app.slow.delay("dead", 60)
    effects.wait_count("dead:start", 1)
    start_worker(f"{APP}:app", concurrency=2)
    app.slow.delay("living", 10)
    effects.wait_count("living:start", 1)

    with server.client() as client:
        before = client.time()[0]
        clock_skew.set(-3600)
        wait_until(lambda: client.time()[0] < before - 3000, what="the server's clock")
    doomed.kill_tree()

    effects.wait_count("dead:start", 2, 60)
    effects.wait_count("living:end", 1)
    assert effects.count("living:start") == 1


def test_a_servers_clock_that_leaps_ahead_takes_nothing_from_the_living(make_redis, clock_skew):
    """By an hour: all leases are over at once, and who looks first gives the others time."""
    server = make_redis(env=clock_skew.env)
    pool = redis.ConnectionPool.from_url(server.url())
    mine, living = (Session(Keys(), pool, Terms(lease_s=6)) for _ in range(2))
    for session in (mine, living):
        session.join([Keys().lane("q")])

    with server.client() as client:
        before = client.time()[0]
        clock_skew.set(3600)
        wait_until(lambda: client.time()[0] > before + 3000, what="the server's clock")
        Keeper(mine, dict)._turn(client)
        living.tick()

    assert not living.lost
    for session in (mine, living):
        session.end()


def test_what_the_server_refuses_for_good_keeps_no_keeper_from_the_dead(redis_url, client):
    pool = redis.ConnectionPool.from_url(redis_url)
    mine, dead = (Session(Keys(), pool, Terms(lease_s=6)) for _ in range(2))
    for session in (mine, dead):
        session.join([Keys().lane("q")])
    client.zadd("rs:leases", {dead.name: 1})
    keeper = Keeper(mine, lambda: {Keys().lane("q"): 10**30})  # the server knows no such time

    keeper._turn(mine.client)

    assert client.zscore("rs:leases", dead.name) is None
    mine.end()


def test_what_can_not_be_taken_over_is_tried_again_seconds_later(redis_url, client):
    pool = redis.ConnectionPool.from_url(redis_url)
    mine, dead = (Session(Keys(), pool, Terms(lease_s=6)) for _ in range(2))
    client.xgroup_create("rs:{q}:0", "w", id="0", mkstream=True)
    client.xadd("rs:{q}:0", {"m": "held", "n": "0"})
    for session in (mine, dead):
        session.join([Keys().lane("q")])
    client.xreadgroup("w", dead.name, {"rs:{q}:0": ">"})
    client.set("rs:{q}:f", "somebody's own")
    client.zadd("rs:leases", {dead.name: 1})
    keeper = Keeper(mine, dict)

    assert keeper._look_at_the_dead(mine.client, 0) == REFUSED_PAUSE_S
    assert "the dead" in keeper._next_at
    client.delete("rs:{q}:f")
    assert keeper._look_at_the_dead(mine.client, 0) < REFUSED_PAUSE_S

    assert client.xlen("rs:{q}:f") == 1
    mine.end()


def test_who_was_refused_the_renewal_of_a_lease_gives_the_living_time_to_renew_theirs(
    redis_url, client
):
    """Whatever it was, they may have been refused it too."""
    pool = redis.ConnectionPool.from_url(redis_url)
    mine, living = (Session(Keys(), pool, Terms(lease_s=6)) for _ in range(2))
    for session in (mine, living):
        session.join([Keys().lane("q")])
    keeper = Keeper(mine, dict)
    client.set("rs:due", "somebody's own")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        keeper._turn(mine.client)
    client.delete("rs:due")
    client.zadd("rs:leases", {living.name: 1})

    keeper._turn(mine.client)
    living.tick()

    assert not living.lost
    for session in (mine, living):
        session.end()


def test_a_keeper_that_is_refused_its_sleep_takes_over_from_the_dead(redis_url, client, caplog):
    caplog.set_level(logging.INFO)
    client.set("rs:wake", "somebody's own")

    with Connection(streams(redis_url), transport_options={"lease_s": 3}) as connection:
        connection.default_channel.join(["q"])
        wait_until(lambda: "the keeper" in caplog.text, what="a sleep that is refused")
        client.zadd("rs:leases", {"dead": 1})
        wait_until(lambda: client.zscore("rs:leases", "dead") is None, what="the take-over")

        assert client.zcard("rs:leases") == 1


def test_what_an_answer_holds_that_was_not_read_for_long_is_not_given_back(connection, client):
    """The consumer's thread is busy; the minute's look finds what it does not know of yet."""
    connection.SimpleQueue("q").put("handed out")
    scripts.load(client, scripts.FETCH)
    channel = connection.channel()
    queue, got = Queue("q")(channel), []
    queue.consume(no_ack=False, callback=got.append)
    channel.connection.cycle._register_BRPOP(channel)
    wait_until(lambda: client.xinfo_groups("rs:{q}:0"), what="a hand-over")
    [held] = client.xpending_range("rs:{q}:0", "w", "-", "+", 1)
    channel.session.asked_at -= 60
    client.xclaim("rs:{q}:0", "w", held["consumer"], 0, [held["message_id"]], idle=60_000)

    Keeper(channel.session, dict)._audit(client)

    assert client.xlen("rs:{q}:f") == 0
    channel._brpop_read()
    [message] = got
    assert message.payload == "handed out"
    assert channel.session.asked_at is None
    message.ack()
    assert client.xlen("rs:{q}:0") == client.xlen("rs:{q}:f") == 0


@pytest.mark.slow
def test_the_articles_timeline(load_streams_app, effects, start_worker, redis_server):
    """S-V2: T = 30 s; death at 5 s; second claim at about 30 s; acked, and never again."""
    app = load_streams_app(options={"lease_s": 30})
    doomed = start_worker(f"{APP}:app")
    app.slow.delay("long", 9)
    effects.wait_count("long:start", 1)
    start_worker(f"{APP}:app")
    doomed.kill_tree()
    killed = time.monotonic()

    effects.wait_count("long:start", 2, 60)

    assert 18 < effects.lines("long:start")[1]["monotonic"] - killed < 32
    effects.wait_count("long:end", 1)
    with redis_server.client() as client:
        wait_until(lambda: client.xlen("rs:{celery}:f") == 0, what="the ack")
    assert effects.count("long:start") == 2


@pytest.mark.slow
def test_a_task_longer_than_the_lease_runs_once(load_streams_app, effects, start_worker):
    """C02: three workers look for dead ones meanwhile."""
    app = load_streams_app(options={"lease_s": 2})
    for _ in range(3):
        start_worker(f"{APP}:app", pool="solo")

    app.slow.delay("long", 9)

    effects.wait_count("long:end", 1)
    assert effects.count("long:start") == 1


@pytest.mark.slow
def test_apps_with_other_leases_on_one_server_leave_each_other_alone(
    load_streams_app, effects, start_worker, redis_server
):
    """C04: the one with the short lease sweeps often, and may not touch the others'."""
    app = load_streams_app(options={"lease_s": 3600})
    start_worker(f"{APP}:app", queues=["patient"])
    load_streams_app(options={"lease_s": 30})
    start_worker(f"{APP}:app", queues=["middle"])
    load_streams_app(options={"lease_s": 2})
    start_worker(f"{APP}:app", queues=["hasty"])
    for queue in ("patient", "middle", "hasty"):
        app.slow.apply_async((queue, 8), queue=queue)

    for queue in ("patient", "middle", "hasty"):
        effects.wait_count(f"{queue}:end", 1)

    assert [effects.count(f"{q}:start") for q in ("patient", "middle", "hasty")] == [1, 1, 1]


def test_a_worker_that_was_declared_dead_acks_nothing_and_starts_nothing(
    load_streams_app, effects, start_worker, redis_server
):
    """Frozen for longer than its lease: what it held runs elsewhere, and only there."""
    app = load_streams_app(options={"lease_s": 2}, conf={"worker_prefetch_multiplier": 4})
    frozen = start_worker(f"{APP}:app", concurrency=1)
    app.slow.delay("first", 3)
    effects.wait_count("first:start", 1)
    for number in range(3):
        app.effect.delay(f"k{number}")
    with redis_server.client() as client:
        wait_until(lambda: client.xpending("rs:{celery}:0", "w")["pending"] == 4, what="prefetch")
        frozen.stop_tree()
        other = start_worker(f"{APP}:app", concurrency=1)
        effects.wait_for(lambda it: all(it.count(f"k{n}") for n in range(3)))

        frozen.cont_tree()

        frozen.wait_log("declared dead by the server")
        effects.wait_count("first:end", 2)
        app.effect.delay("both alive")
        effects.wait_count("both alive", 1)
        wait_until(lambda: client.xlen("rs:{celery}:0") == 0, what="an empty lane")
        wait_until(lambda: client.xlen("rs:{celery}:f") == 0, what="an empty front")
    for number in range(3):
        assert [line["pid"] for line in effects.lines(f"k{number}")] == [other.children()[0]]
    assert frozen.returncode is None
    assert client


def test_a_frozen_parent_starts_nothing_for_the_room_that_its_child_made_meanwhile(
    load_streams_app, effects, start_worker, redis_server, tmp_path
):
    """The child ends its task while the parent is frozen: the next one may not start then."""
    app = load_streams_app(options={"lease_s": 2}, conf={"worker_prefetch_multiplier": 4})
    frozen = start_worker(f"{APP}:app", concurrency=1)
    gate = tmp_path / "gate"
    app.gated.delay("first", str(gate))
    for number in range(3):
        app.effect.delay(f"k{number}")
    with redis_server.client() as client:
        wait_until(
            lambda: (
                client.exists("rs:{celery}:0")
                and client.xpending("rs:{celery}:0", "w")["pending"] == 4
            ),
            what="prefetch",
        )
    effects.wait_count("first:start", 1)
    frozen.stop_parent()
    gate.touch()
    effects.wait_count("first:end", 1)
    other = start_worker(f"{APP}:app", concurrency=1)
    effects.wait_for(lambda it: all(it.count(f"k{n}") for n in range(3)))

    frozen.cont_parent()

    frozen.wait_log("declared dead by the server")
    frozen.wait_log("Connected to", 30)
    app.effect.delay("after")
    effects.wait_count("after", 1)
    for number in range(3):
        assert [line["pid"] for line in effects.lines(f"k{number}")] == [other.children()[0]]


def test_what_is_held_under_no_lease_is_found(
    load_streams_app, effects, start_worker, redis_server
):
    """C64: the lease was lost (a failover), the pending entry was not."""
    app = load_streams_app()
    app.effect.delay("orphan")
    with redis_server.client() as client:
        client.xgroup_create("rs:{celery}:0", "w", "0")
        client.xreadgroup("w", "ghost:1:abc", {"rs:{celery}:0": ">"})

    start_worker(f"{APP}:app")

    effects.wait_count("orphan", 1)
