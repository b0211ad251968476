"""``celery -A proj idem broker …``: what an operator sees, and what a kill at any moment leaves."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kombu import Connection

from celery_idem.cli.idem import idem
from tests.support.processes import guarded
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.workers import ROOT
from tests.transport.conftest import APP, streams

#: enough for many calls of the moving scripts
MANY = 3000


@pytest.fixture
def app(load_streams_app: Any) -> Any:
    return load_streams_app().app


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    with redis_server.client() as made:
        yield made


@pytest.fixture
def run(app: Any) -> Callable[..., Result]:
    def run(*words: str, code: int = 0, typed: str = "") -> Result:
        found = CliRunner().invoke(idem, ("broker", *words), obj=SimpleNamespace(app=app),
                                   input=typed)  # fmt: skip
        assert found.exit_code == code, (found.output, found.exception)
        return found

    return run


def put(url: str, numbers: range, queue: str = "celery", **options: Any) -> None:
    with Connection(url) as connection, connection.Producer() as producer:
        connection.SimpleQueue(queue)
        for number in numbers:
            producer.publish(number, routing_key=queue, **options)


def hold(url: str, count: int) -> None:
    """A stock worker takes some, and is gone without an ack or a good-bye."""
    script = (
        "import os, sys; from kombu import Connection\n"
        "queue = Connection(sys.argv[1]).SimpleQueue('celery')\n"
        "for _ in range(int(sys.argv[2])): queue.get(timeout=10)\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, url, str(count)], check=True, timeout=60)


def take_all(url: str, count: int, queue: str = "celery") -> list[int]:
    with Connection(url) as connection:
        waiting = connection.SimpleQueue(queue)
        got = []
        for _ in range(count):
            message = waiting.get(timeout=10)
            got.append(message.payload)
            message.ack()
    return got


def test_a_dry_run_says_what_would_be_moved_and_moves_nothing(run, redis_server, client):
    put(redis_server.url(), range(5))
    put(redis_server.url(), range(2), queue="low")
    hold(redis_server.url(), 1)

    shown = json.loads(run("drain", "--dry-run", "--idle", "0", "--json").stdout)

    assert shown == {
        "dry_run": True,
        "moved": 7,
        "queues": [
            {"queue": "celery", "waiting": 4, "unacked": 1},
            {"queue": "low", "waiting": 2, "unacked": 0},
        ],
    }
    assert (client.llen("celery"), client.llen("low"), client.hlen("unacked")) == (4, 2, 1)
    assert (
        "7 messages would be moved into the streams"
        in run("drain", "--dry-run", "--idle", "0").stdout
    )


def test_draining_and_rolling_back_end_where_they_began(run, redis_server, client):
    put(redis_server.url(), range(5))

    assert json.loads(run("drain", "--json").stdout)["moved"] == 5
    assert client.llen("celery") == 0
    assert client.xlen("rs:{celery}:0") == 5
    assert "5 messages were moved into the lists" in run("rollback").stdout

    assert take_all(redis_server.url(), 5) == list(range(5))
    assert client.exists("rs:{celery}:0") == 0 or client.xlen("rs:{celery}:0") == 0


def test_only_the_queues_that_are_named_are_moved(run, redis_server, client):
    put(redis_server.url(), range(3))
    put(redis_server.url(), range(3), queue="low")

    run("drain", "-Q", "low")

    assert (client.llen("celery"), client.llen("low")) == (3, 0)


def test_a_queue_that_nobody_knows_is_an_error_that_names_the_known_ones(run, redis_server):
    put(redis_server.url(), range(1), queue="low")

    said = run("drain", "-Q", "lwo", code=2).output

    assert "no queue 'lwo'; there is celery, low" in said


def test_moving_what_living_workers_may_have_is_asked_first(run, redis_server, client):
    put(redis_server.url(), range(2))
    hold(redis_server.url(), 2)

    said = run("drain", "--idle", "0", code=1, typed="n\n").output

    assert "runs again if they are still at it" in said
    assert client.hlen("unacked") == 2
    assert json.loads(run("drain", "--idle", "0", "--yes", "--json").stdout)["moved"] == 2


@pytest.mark.parametrize("idle", ["-1", "soon"])
def test_a_time_that_is_none_is_refused(run, idle):
    assert "--idle" in run("drain", "--idle", idle, code=2).output


def test_another_broker_is_refused_with_what_is_needed(load_app, redis_server):
    app = load_app("tests.apps.plain", TEST_BROKER=redis_server.url()).app

    for command in ("status", "drain", "rollback"):
        found = CliRunner().invoke(idem, ["broker", command], obj=SimpleNamespace(app=app))
        assert found.exit_code == 1
        assert "this needs a redis-streams:// broker, not redis://" in found.output


def test_a_server_that_is_not_there_is_said_in_a_sentence(run, redis_server):
    redis_server.kill()

    found = run("status", code=1)

    assert found.output.startswith("Error: redis-streams://")
    assert "Traceback" not in found.output


def test_status_shows_queues_workers_what_stock_left_and_warnings(run, app, redis_server):
    put(redis_server.url(), range(3))
    hold(redis_server.url(), 1)
    app.send_task("streams.noop")
    app.send_task("streams.noop", countdown=600)
    app.send_task("streams.noop", queue="other")

    with app.connection_for_write() as connection:
        held = connection.default_channel.basic_get("celery")
        shown = json.loads(run("status", "--json").stdout)
        text = run("status").stdout
        held.ack()

    by_name = {row["queue"]: row for row in shown["queues"]}
    assert (by_name["celery"]["held"], by_name["celery"]["delayed"]) == (1, 1)
    assert by_name["other"]["ready"] == 1
    assert [worker["queues"] for worker in shown["workers"]] == [["celery"]]
    assert shown["stock"] == {"waiting": {"celery": 2}, "unacked": 1}
    assert shown["warnings"] == []
    assert "stock list celery: 2 waiting" in text
    assert "stock workers hold 1 messages" in text


def test_what_is_not_due_waits_in_the_broker_after_a_drain(run, app, redis_server, client):
    """C31: also where the producer was a stock one, and where a stock worker held it."""
    with Connection(redis_server.url()) as stock:
        for countdown in (600, 900, None):
            app.send_task("streams.effect", ("k",), countdown=countdown, connection=stock)
    hold(redis_server.url(), 1)

    run("drain", "--idle", "0", "--yes")

    assert client.xlen("rs:{celery}:0") == 1
    seconds = client.time()[0]
    waits = [due / 1000 - seconds for _, due in client.zrange("rs:{celery}:d", 0, -1,
                                                                withscores=True)]  # fmt: skip
    assert [round(wait_s / 300) for wait_s in waits] == [2, 3]


def test_what_killed_workers_held_is_rolled_back_too(run, redis_server, client):
    """Their lease is over, and no worker of ours is left that would take it over."""
    put(streams(redis_server.url()), range(3))
    script = (
        "import os, sys, celery_idem.transport; from kombu import Connection\n"
        "options = {'lease_s': 0.2}\n"
        "queue = Connection(sys.argv[1], transport_options=options).SimpleQueue('celery')\n"
        "queue.get(timeout=10); os._exit(0)"
    )
    url = streams(redis_server.url())
    subprocess.run([sys.executable, "-c", script, url], check=True, timeout=60, cwd=ROOT)
    wait_until(
        lambda: client.zrange("rs:leases", 0, 0, withscores=True)[0][1] / 1000 < client.time()[0],
        what="the end of its lease",
    )

    assert json.loads(run("rollback", "--json").stdout)["moved"] == 3
    assert sorted(take_all(redis_server.url(), 3)) == [0, 1, 2]


def test_what_can_not_be_read_stays_or_is_set_aside(run, redis_server, client):
    """C20: of what a stock worker held, and of what is in a stream."""
    put(redis_server.url(), range(1))
    client.hset("unacked", "tag", "no json")
    client.zadd("unacked_index", {"tag": 1})
    client.xadd("rs:{celery}:0", {"other": "field"})

    assert json.loads(run("drain", "--json").stdout)["moved"] == 1
    assert client.hget("unacked", "tag") == b"no json"

    assert json.loads(run("rollback", "--json").stdout)["moved"] == 1
    [(_, dead)] = client.xrange("rs:{celery}:dead")
    assert dead[b"m"] == b"other field"
    assert take_all(redis_server.url(), 1) == [0]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", ["drain", "rollback"])
def test_moving_that_is_killed_again_and_again_loses_and_doubles_nothing(
    command, app, run, redis_server, client, fault_proxy, monkeypatch
):
    """SIGKILL at random moments of the move; then the same command to its end."""
    if command == "drain":
        put(redis_server.url(), range(MANY))
        hold(redis_server.url(), 100)
    else:
        put(streams(redis_server.url()), range(MANY))
    proxy = fault_proxy(redis_server.address)
    proxy.set(latency_s=0.01)  # a call takes a while, so that it can be hit
    monkeypatch.setenv("TEST_BROKER", streams(proxy.url()))

    def left() -> int:
        if command == "drain":
            return int(client.llen("celery") + client.hlen("unacked"))
        return int(client.xlen("rs:{celery}:0"))

    for _ in range(4):
        _kill_while_it_moves(command, left)
    assert left() > 0
    again = ("drain", "--idle", "0", "--yes") if command == "drain" else ("rollback",)
    run(*again)

    assert left() == 0
    target = streams(redis_server.url()) if command == "drain" else redis_server.url()
    assert sorted(take_all(target, MANY)) == list(range(MANY))
    assert client.llen("celery") == 0
    assert client.xlen("rs:{celery}:0") == client.xlen("rs:{celery}:f") == 0


def _kill_while_it_moves(command: str, left: Callable[[], int]) -> None:
    words = [sys.executable, "-m", "celery", "-A", f"{APP}:app", "idem", "broker", command]
    words += ["--idle", "0", "--yes"] if command == "drain" else []
    before = left()
    process = subprocess.Popen(guarded(words), cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: left() < before, 60, "the first message to be moved")
        with_luck_s = random.uniform(0, 0.08)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(with_luck_s)
    finally:
        process.kill()
        process.wait(30)
