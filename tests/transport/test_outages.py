"""The broker goes away and comes back: the worker comes back by itself, and nothing is lost."""

from __future__ import annotations

import time

import celery
import pytest
from kombu.exceptions import OperationalError

from tests.support.waiting import wait_until
from tests.support.workers import IMPATIENT_RESULTS
from tests.transport.conftest import APP, streams

#: Prefork, where it remembers over an outage what its children run; before, it starts that again.
REMEMBERING = ["prefork"] if celery.VERSION >= (5, 6, 3) else []


def pending(client) -> list[object]:
    """What workers hold of the lane, and the leases."""
    held = client.xpending_range("rs:{celery}:0", "w", "-", "+", 100)
    return [*held, *client.zrange("rs:leases", 0, -1, withscores=True), client.time()]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_task_that_runs_through_an_outage_is_acked_after_it_and_not_run_twice(
    pool, load_streams_app, effects, start_worker, redis_server, fault_proxy
):
    proxy = fault_proxy(redis_server.address)
    app = load_streams_app(broker=streams(proxy.url()))
    worker = start_worker(f"{APP}:app", pool=pool, concurrency=2)
    app.slow.delay("long", 8)
    effects.wait_count("long:start", 1)

    proxy.cut()
    worker.wait_log("Connection to broker lost|Trying to re-establish")
    proxy.heal()
    app.effect.delay("after")

    effects.wait_count("after", 1, 60)
    effects.wait_count("long:end", 1)
    with redis_server.client() as client:
        wait_until(lambda: client.xlen("rs:{celery}:0") == 0, what="the late ack")
    if pool != "prefork" or REMEMBERING:
        assert effects.count("long:start") == 1
    assert worker.returncode is None


def test_what_waits_for_a_thread_during_an_outage_is_run_once(
    load_streams_app, effects, start_worker, redis_server, fault_proxy
):
    """The pool has it already, and runs it whatever became of the connection."""
    proxy = fault_proxy(redis_server.address)
    app = load_streams_app(
        broker=streams(proxy.url()), conf={"worker_prefetch_multiplier": 4}, options={"lease_s": 20}
    )
    worker = start_worker(f"{APP}:app", pool="threads", concurrency=1)
    app.slow.delay("long", 8)
    effects.wait_count("long:start", 1)
    app.effect.delay("waiting")
    worker.wait_log(r"(?s)streams\.slow\[.*streams\.effect\[\S+ received")

    proxy.cut()
    worker.wait_log("Connection to broker lost|Trying to re-establish")
    proxy.heal()

    effects.wait_count("waiting", 1, 60)
    with redis_server.client() as client:
        wait_until(lambda: not pending(client)[0:-2], what="the late acks")
        wait_until(lambda: client.xlen("rs:{celery}:f") == 0, what="no second delivery")
    assert (effects.count("long:start"), effects.count("waiting")) == (1, 1)


@pytest.mark.parametrize("pool", [*REMEMBERING, "threads", "gevent"])
def test_what_ends_in_the_pause_before_a_new_connection_is_not_run_twice(
    pool, load_streams_app, effects, start_worker, redis_server, fault_proxy, tmp_path
):
    """The keeper is back at once; Celery, whose turn it is to ack, only after its pause."""
    proxy, gate = fault_proxy(redis_server.address), tmp_path / "gate"
    # results come at another way: they can be stored
    app = load_streams_app(broker=streams(proxy.url()), backend=redis_server.url(1))
    worker = start_worker(f"{APP}:app", pool=pool, concurrency=2)
    app.gated.delay("ends", str(gate))
    effects.wait_count("ends:start", 1)

    proxy.cut()
    worker.wait_log("Trying again in 4", 60)
    gate.touch()
    effects.wait_count("ends:end", 1)
    proxy.heal()
    app.effect.delay("after")

    effects.wait_count("after", 1, 60)
    with redis_server.client() as client:
        wait_until(lambda: client.xlen("rs:{celery}:0") == 0, what="the late ack")
    assert effects.count("ends:start") == 1


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet", "solo"])
def test_a_job_whose_result_can_not_be_stored_takes_no_place_for_ever(
    pool, load_streams_app, effects, start_worker, redis_server, fault_proxy, tmp_path
):
    """Nor could the error be stored: in all pools but prefork the worker was deaf then."""
    results, gate = fault_proxy(redis_server.address), tmp_path / "gate"
    load_streams_app(backend=results.url(1), conf=IMPATIENT_RESULTS)
    worker = start_worker(f"{APP}:app", pool=pool, concurrency=1)
    app = load_streams_app()
    app.gated.delay("mute", str(gate))
    effects.wait_count("mute:start", 1)

    results.cut()
    gate.touch()
    worker.wait_log("ConnectionError", 60)
    with redis_server.client() as client:
        wait_until(lambda: client.xlen("rs:{celery}:0") == 0, 60, what="the ack, as in prefork")
    app.effect.delay("next")

    effects.wait_count("next", 1, 60)
    assert effects.count("mute:start") == 1


def test_a_job_in_a_thread_whose_result_can_not_be_stored_does_not_outlive_an_outage(
    load_streams_app, effects, start_worker, redis_server, fault_proxy, tmp_path
):
    """Celery went on counting it as active, so its message was held for as long as it did."""
    broker, results = (fault_proxy(redis_server.address) for _ in range(2))
    gate = tmp_path / "gate"
    load_streams_app(broker=streams(broker.url()), backend=results.url(1), conf=IMPATIENT_RESULTS)
    worker = start_worker(f"{APP}:app", pool="threads", concurrency=2)
    app = load_streams_app()
    app.gated.delay("mute", str(gate))
    effects.wait_count("mute:start", 1)

    results.cut()
    broker.cut()
    worker.wait_log("Connection to broker lost|Trying to re-establish")
    gate.touch()
    worker.wait_log("raised outside body", 60)
    broker.heal()
    results.heal()

    with redis_server.client() as client:
        wait_until(
            lambda: client.xlen("rs:{celery}:0") == 0,
            60,
            what=lambda: f"an empty lane: {pending(client)}\n{worker.log_text()[-6000:]}",
        )
    assert effects.count("mute:start") == 1


def test_an_answer_that_got_lost_is_made_good_while_a_job_of_before_still_runs(
    load_streams_app, effects, start_worker, redis_server, fault_proxy, tmp_path
):
    """What it handed over is nobody's, and the old session lives as long as that job."""
    proxy, gate = fault_proxy(redis_server.address), tmp_path / "gate"
    app = load_streams_app(
        broker=streams(proxy.url()), backend=redis_server.url(1), options={"lease_s": 30}
    )
    worker = start_worker(f"{APP}:app", pool="threads", concurrency=2)
    app.gated.delay("long", str(gate))
    effects.wait_count("long:start", 1)

    proxy.set(latency_s=0.4)
    with app.app.connection_for_write(streams(redis_server.url())) as connection:
        app.app.send_task("streams.effect", ("handed over",), connection=connection)
    with redis_server.client() as client:
        wait_until(lambda: len(pending(client)) == 2 + 2, what="a hand-over")
    proxy.cut()
    assert effects.count("handed over") == 0
    worker.wait_log("Connection to broker lost|Trying to re-establish")
    proxy.heal()

    effects.wait_count("handed over", 1)
    assert effects.count("long:end") == 0, "while it ran"
    gate.touch()
    effects.wait_count("long:end", 1)


def test_an_idle_worker_survives_a_master_that_becomes_a_replica(
    load_streams_app, effects, start_worker, redis_server, make_redis
):
    """C64: an orderly failover. The server ends every wait with UNBLOCKED."""
    other = make_redis("other")
    app = load_streams_app()
    worker = start_worker(f"{APP}:app")
    app.effect.delay("before")
    effects.wait_count("before", 1)
    with redis_server.client() as client:
        wait_until(lambda: client.info("clients")["blocked_clients"] >= 2, what="an idle worker")

        client.replicaof(*other.address)
        worker.wait_log("Connection to broker lost|Trying to re-establish|Cannot connect", 60)
        client.replicaof("NO", "ONE")
    app.effect.delay("after")

    effects.wait_count("after", 1, 60)
    assert worker.returncode is None


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_worker_survives_a_restart_of_the_server(
    pool, load_streams_app, effects, start_worker, redis_server
):
    app = load_streams_app()
    worker = start_worker(f"{APP}:app", pool=pool, concurrency=2)
    for number in range(20):
        app.slow.delay(f"k{number}", 0.2)
    effects.wait_count("k3:end", 1)

    redis_server.kill()
    worker.wait_log("Connection to broker lost|Trying to re-establish|Cannot connect")
    redis_server.start()

    effects.wait_for(lambda it: all(it.count(f"k{n}:end") >= 1 for n in range(20)), 60)
    assert worker.returncode is None
    with redis_server.client() as client:
        wait_until(
            lambda: client.xlen("rs:{celery}:0") == 0,
            what=lambda: f"an empty lane: {pending(client)}\n{worker.log_text()[-6000:]}",
        )


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_survives_a_server_that_refuses_for_now(
    pool, load_streams_app, effects, start_worker, redis_server
):
    """Found by chaos: a master without its replica (NOREPLICAS) ended the worker. C64"""
    app = load_streams_app()
    worker = start_worker(f"{APP}:app", pool=pool, concurrency=2)
    app.slow.delay("through", 6)
    effects.wait_count("through:start", 1)

    with redis_server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        worker.wait_log("Connection to broker lost|Trying to re-establish|Cannot connect", 60)
        with pytest.raises(OperationalError, match="NOREPLICAS"):
            app.effect.apply_async(("refused",), retry=False)
        client.config_set("min-replicas-to-write", 0)
    app.effect.delay("after")

    effects.wait_count("after", 1, 60)
    effects.wait_count("through:end", 1, 60)
    assert effects.count("refused") == 0
    assert worker.returncode is None


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_an_ack_that_the_server_refuses_for_now_is_sent_again(
    pool, load_streams_app, effects, start_worker, redis_server, tmp_path
):
    """It was taken for one that comes too late, and its message was given back."""
    gate = tmp_path / "gate"
    app = load_streams_app(conf={"task_ignore_result": True})
    worker = start_worker(f"{APP}:app", pool=pool, concurrency=2)
    app.gated.delay("refused", str(gate))
    effects.wait_count("refused:start", 1)

    with redis_server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        gate.touch()
        effects.wait_count("refused:end", 1)
        worker.wait_log("acks wait for the server|Trying again in 4|Frequent restarts", 60)
        client.config_set("min-replicas-to-write", 0)
        wait_until(lambda: client.xlen("rs:{celery}:0") == 0, 60, what="the ack")
    app.effect.delay("after")

    effects.wait_count("after", 1, 60)
    if pool != "prefork" or REMEMBERING:
        assert effects.count("refused:start") == 1


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("away_s", [3, 30])
def test_a_worker_lives_through_a_server_that_is_away_and_acks_what_it_ran(
    away_s, load_streams_app, effects, start_worker, redis_server
):
    """C64: ten times the lease; nobody may sweep before the living have renewed."""
    app = load_streams_app(conf={"task_ignore_result": True})
    workers = [start_worker(f"{APP}:app", concurrency=2) for _ in range(2)]
    app.slow.delay("through", away_s + 10)
    effects.wait_count("through:start", 1)
    app.effect.apply_async(("due meanwhile",), countdown=away_s / 2)

    redis_server.kill()
    gone = time.monotonic()
    wait_until(lambda: time.monotonic() - gone > away_s, away_s + 30, "the outage")
    redis_server.start()
    app.effect.delay("after")

    effects.wait_count("after", 1, 60)
    effects.wait_count("due meanwhile", 1, 60)
    effects.wait_count("through:end", 1, 120)
    with redis_server.client() as client:
        wait_until(lambda: client.xlen("rs:{celery}:0") == 0, 60, "the late ack")
        wait_until(lambda: client.xlen("rs:{celery}:f") == 0, 60, "no second delivery")
    assert [worker.returncode for worker in workers] == [None, None]
    if celery.VERSION >= (5, 6, 3):
        assert effects.count("through:start") == 1


@pytest.mark.slow
def test_a_half_open_connection_is_noticed_and_replaced(
    load_streams_app, effects, start_worker, redis_server, fault_proxy
):
    proxy = fault_proxy(redis_server.address)
    app = load_streams_app(
        broker=streams(proxy.url()), options={"socket_timeout": 2, "block_s": 1, "lease_s": 10}
    )
    worker = start_worker(f"{APP}:app", concurrency=2)
    app.effect.delay("before")
    effects.wait_count("before", 1)

    proxy.set(blackhole="down")
    worker.wait_log("can't reach the server")
    proxy.heal()
    app.effect.delay("after")

    effects.wait_count("after", 1, 60)
    worker.term()
    assert worker.wait_exit() == 0
