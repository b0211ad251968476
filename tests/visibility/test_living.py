"""A message that a living worker holds is delivered to nobody else (S-V1, S-V5)."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.clock import ClockSkew
from tests.support.waiting import wait_until
from tests.visibility.conftest import APP, HOUR

VT5 = json.dumps({"visibility_timeout": 5})


@pytest.mark.slow
def test_a_countdown_longer_than_the_visibility_timeout_fires_once(
    kept, effects, start_worker, broker_keys
):  # C01
    app = kept()
    for _ in range(2):
        start_worker(APP, pool="solo")

    app.early.apply_async(("due",), countdown=14)

    effects.wait_count("due", 1)
    wait_until(lambda: broker_keys() == {}, what=lambda: f"an end of {broker_keys()}")
    assert effects.count("due") == 1


@pytest.mark.slow
def test_a_task_longer_than_the_visibility_timeout_starts_once(
    kept, effects, start_worker, broker_keys
):  # C02
    app = kept()
    for _ in range(3):
        start_worker(APP, pool="solo")

    app.work.delay("long", 14)

    effects.wait_count("long:end", 1)
    wait_until(lambda: broker_keys() == {}, what=lambda: f"an end of {broker_keys()}")
    assert effects.keys() == ["long:start", "long:end"]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_without_the_keeper_the_same_task_starts_again(kept, effects, start_worker):  # C02
    app = kept(TEST_KEEPER="0")
    for _ in range(2):
        start_worker(APP)

    app.work.delay("long", 180)

    effects.wait_count("long:start", 2, deadline_s=150)  # kombu < 5.7 looks every 100 s


@pytest.mark.slow
def test_forty_seconds_of_work_start_once(kept, effects, start_worker):
    app = kept(TEST_OPTIONS=VT5)
    for _ in range(3):
        start_worker(APP)

    app.work.delay("long", 40)

    effects.wait_count("long:end", 1, deadline_s=90)
    assert effects.keys() == ["long:start", "long:end"]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_every_pool_keeps_what_it_holds(pool, kept, effects, start_worker):
    """With green threads, remote control opens a consumer's connection of its own: the first one's
    holder must not be forgotten for it."""
    app = kept(TEST_CONF='{"worker_enable_remote_control": true}')
    worker = start_worker(APP, pool=pool, concurrency=1)
    app.work.delay("long", 10)  # a lease is 3 s
    effects.wait_count("long:start", 1)

    effects.wait_count("long:end", 1)

    assert effects.keys() == ["long:start", "long:end"]
    assert not re.search("taking over|given to other workers", worker.log_text())


@pytest.mark.slow
def test_an_app_that_knows_nothing_of_us_takes_nothing_from_us(
    kept, effects, load_app, start_worker, redis_server
):  # C04
    app = kept(TEST_OPTIONS=HOUR)
    load_app("tests.apps.plain", TEST_BROKER=redis_server.url())
    start_worker("tests.apps.plain:app", queues=["foreign"])
    for _ in range(2):
        start_worker(APP)

    app.work.delay("long", 14)

    effects.wait_count("long:end", 1)
    assert effects.keys() == ["long:start", "long:end"]


@pytest.mark.slow
def test_prefetched_messages_wait_as_long_as_their_turn_takes(kept, effects, start_worker):
    app = kept(TEST_CONF='{"worker_prefetch_multiplier": 8}')
    start_worker(APP)
    for number in range(4):
        app.work.delay(f"n{number}", 3)
    effects.wait_count("n0:start", 1)
    start_worker(APP)

    effects.wait_for(lambda it: len(it.keys()) >= 8, what="all starts and ends")

    assert [effects.count(f"n{number}:start") for number in range(4)] == [1] * 4


@pytest.mark.slow
def test_wrong_clocks_of_workers_change_nothing(
    kept, effects, start_worker, redis_server, tmp_path, clock_skew
):  # C62
    app = kept()
    late, early = clock_skew, ClockSkew(tmp_path / "early")
    late.set(-5)
    early.set(+5)
    start_worker(APP, pool="threads", concurrency=10, env=late.env)
    start_worker(APP, pool="threads", concurrency=10, env=early.env)
    victim = start_worker(APP, pool="threads", concurrency=2, queues=["doomed"], env=early.env)
    app.work.apply_async(("dead", 60), queue="doomed")
    effects.wait_count("dead:start", 1)

    for number in range(20):
        app.work.delay(f"n{number}", 15)
    victim.kill_tree()
    start_worker(APP, queues=["doomed"], env=late.env)

    keys = [f"n{number}" for number in range(20)]
    effects.wait_for(lambda it: all(it.count(f"{key}:end") for key in keys), 60, "the ends")
    effects.wait_count("dead:start", 2)
    assert [effects.count(f"{key}:start") for key in keys] == [1] * 20
