"""Moving between the stock transport and ours while producers and workers go on."""

from __future__ import annotations

from collections import Counter

import pytest
from kombu import Connection

from celery_idem.core.errors import ConfigError
from celery_idem.transport import moving, status
from tests.support.waiting import wait_until
from tests.transport.conftest import APP, streams


@pytest.fixture
def client(redis_session_server):
    with redis_session_server.client() as made:
        yield made


def put(url, count, **options) -> None:
    with Connection(url) as connection:
        queue = connection.SimpleQueue("q")
        for number in range(count):
            queue.put(number, **options)


def get_all(url, count) -> list[object]:
    with Connection(url) as connection:
        queue = connection.SimpleQueue("q")
        got = []
        for _ in range(count):
            message = queue.get(timeout=5)
            got.append(message.payload)
            message.ack()
    return got


def test_stock_lists_are_drained_in_order_with_their_priorities(redis_url, client):
    put(redis_url, 3)
    put(redis_url, 2, priority=6)

    with Connection(streams(redis_url)) as connection:
        assert moving.drain(connection, ["q"], dry_run=True) == [moving.Moved("q", 5)]
        assert client.llen("q") == 3
        assert moving.drain(connection, ["q"]) == [moving.Moved("q", 5)]

    assert get_all(streams(redis_url), 5) == [0, 1, 2, 0, 1]
    assert client.exists("q", "q\x06\x166") == 0


def test_what_a_dead_stock_worker_left_unacked_is_drained(redis_url, client):
    put(redis_url, 2)
    stock = Connection(redis_url)
    held = stock.SimpleQueue("q").get(timeout=5)
    assert held.payload == 0

    with Connection(streams(redis_url)) as connection:
        # it could still be running: its time is not over
        assert moving.drain(connection, ["q"]) == [moving.Moved("q", 1)]
        assert moving.drain(connection, ["q"], idle_s=0) == [moving.Moved("q", 0, 1)]

    assert client.hlen("unacked") == 0
    stock.close()
    assert sorted(get_all(streams(redis_url), 2)) == [0, 1]


def test_rolled_back_messages_come_from_stock_in_order(redis_url, client):
    put(streams(redis_url), 250)
    put(streams(redis_url), 1, priority=9)

    with Connection(streams(redis_url)) as connection:
        assert moving.roll_back(connection, ["q"], dry_run=True) == [moving.Moved("q", 251)]
        assert moving.roll_back(connection, ["q"]) == [moving.Moved("q", 251)]

    assert get_all(redis_url, 251) == [*range(250), 0]
    assert client.xlen("rs:{q}:0") == 0


def test_what_a_worker_holds_is_not_rolled_back(redis_url, client):
    put(streams(redis_url), 2)
    with Connection(streams(redis_url)) as holder:
        held = holder.SimpleQueue("q").get(timeout=5)

        with Connection(streams(redis_url)) as connection:
            assert moving.roll_back(connection, ["q"]) == [moving.Moved("q", 1)]

        held.ack()
    assert get_all(redis_url, 1) == [1]


def test_delayed_tasks_are_rolled_back_with_their_eta(load_streams_app, redis_server):
    app = load_streams_app()
    app.effect.apply_async(("later",), countdown=600)

    with app.app.connection_for_write() as connection:
        assert moving.roll_back(connection, ["celery"]) == [moving.Moved("celery", 1)]

    with redis_server.client() as client:
        assert client.llen("celery") == 1
        assert b'"eta": "2' in client.lindex("celery", 0)
        assert client.exists("rs:due", "rs:{celery}:d") == 0


def test_unchanged_producers_go_on_while_a_worker_accepts_lists(
    load_app, load_streams_app, effects, start_worker, redis_server
):
    """Old producers, new ones, and a worker of ours; priorities too."""
    app = load_streams_app(options={"accept_lists": True})
    start_worker(f"{APP}:app", concurrency=2)
    old = load_app("tests.apps.plain", TEST_BROKER=redis_server.url())

    for number in range(30):
        old.app.send_task("streams.effect", (f"old{number}",), priority=number % 10)
        app.effect.delay(f"new{number}")

    effects.wait_for(lambda it: len(set(it.keys())) == 60)
    assert Counter(effects.keys()).most_common(1)[0][1] == 1


def test_another_broker_is_refused(redis_url):
    refused = pytest.raises(ConfigError, match="needs a redis-streams:// broker")

    with Connection(redis_url) as connection, refused:
        moving.drain(connection, ["q"])


def test_status_shows_what_lanes_and_workers_hold(load_streams_app, redis_server):
    app = load_streams_app()
    for _ in range(3):
        app.effect.delay("k")
    app.effect.apply_async(("later",), countdown=600)
    app.effect.apply_async(("other",), queue="other")

    with app.app.connection_for_write() as connection:
        message = connection.default_channel.basic_get("celery")
        found = {lane.queue: lane for lane in status.lanes(connection)}
        [session] = status.sessions(connection)
        message.ack()

    lane = found["celery"]
    assert (lane.ready, lane.held, lane.delayed, lane.set_aside) == (2, 1, 1, 0)
    assert lane.oldest_ready_s is not None
    assert 0 <= lane.oldest_ready_s < 60
    assert lane.longest_held_s is not None
    assert lane.next_due_s is not None
    assert 500 < lane.next_due_s <= 600
    assert found["other"].ready == 1
    assert found["other"].longest_held_s is None
    assert session.queues == ("celery",)
    assert 0 < session.lease_left_s <= 3


def test_a_server_that_may_throw_messages_away_is_warned_of(make_redis):
    careless = make_redis(
        "careless",
        durable=False,
        extra=["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"],
    )
    careful = make_redis("careful")

    with careless.client() as client:
        eviction, loss = status.warnings(client)
    with careful.client() as client:
        assert status.warnings(client) == []

    assert eviction.startswith("maxmemory-policy is allkeys-lru: a full server throws")
    assert loss.startswith("appendonly is no: after a crash of the server nothing is there")


def test_a_full_server_refuses_producers_and_lets_workers_go_on(make_redis, effects, load_app):
    """Taking, acking and renewing need no memory, so a full server is emptied."""
    server = make_redis("full", durable=False, extra=["--maxmemory", "4mb"])
    url = streams(server.url())
    sent = 0
    with Connection(url, transport_options={"lease_s": 2}) as connection:
        queue = connection.SimpleQueue("q")
        queue.put("first")
        queue.get(timeout=5).ack()  # the session, its group and its scripts are there
        with pytest.raises(Exception, match="maxmemory"):  # noqa: PT012 - which one is not known
            for _ in range(5000):
                queue.put("x" * 10_000)
                sent += 1

        for _ in range(sent):
            queue.get(timeout=10).ack()

    assert sent > 50
    with server.client() as client:
        wait_until(lambda: client.xlen("rs:{q}:0") == 0, what="an empty lane")
