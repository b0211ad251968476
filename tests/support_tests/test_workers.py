"""The support itself: a real worker can be started, watched, killed and frozen."""

from __future__ import annotations

import psutil
import pytest

from tests.support.processes import group_members
from tests.support.waiting import DeadlineMissed


def test_a_worker_runs_a_task_and_ends_warm(redis_url, effects, load_app, start_worker):
    plain = load_app("tests.apps.plain", TEST_BROKER=redis_url)
    worker = start_worker("tests.apps.plain:app")

    result = plain.effect.delay("paid", amount=7)

    assert result.get(timeout=30) == "paid"
    assert [line["amount"] for line in effects.lines("paid")] == [7]
    worker.term()
    assert worker.wait_exit() == 0


def test_a_killed_child_is_replaced_and_its_task_runs_again(
    redis_url, effects, load_app, start_worker
):
    plain = load_app("tests.apps.plain", TEST_BROKER=redis_url)
    worker = start_worker("tests.apps.plain:app")
    plain.slow.delay("work", 1.0)
    effects.wait_count("work:start", 1)

    victim = worker.kill_child()

    worker.wait_log("WorkerLostError")
    effects.wait_count("work:end", 1)
    assert effects.count("work:start") == 2
    assert victim not in worker.children()


def test_a_killed_worker_leaves_no_process_and_can_be_started_again(
    redis_url, effects, load_app, start_worker
):
    plain = load_app("tests.apps.plain", TEST_BROKER=redis_url)
    worker = start_worker("tests.apps.plain:app", concurrency=2)
    plain.slow.delay("work", 60)
    effects.wait_count("work:start", 1)
    first = worker.pid
    assert len(worker.members()) == 3

    worker.kill_tree()

    assert group_members(first) == []
    assert worker.returncode == -9
    worker.start().wait_ready()
    assert worker.pid != first
    assert plain.add.delay(2, 3).get(timeout=30) == 5


def test_a_frozen_worker_does_nothing_until_it_is_thawed(
    redis_url, effects, load_app, start_worker
):
    plain = load_app("tests.apps.plain", TEST_BROKER=redis_url)
    worker = start_worker("tests.apps.plain:app")

    worker.stop_tree()

    states = [psutil.Process(pid).status() for pid in worker.members()]
    assert states == [psutil.STATUS_STOPPED] * 2
    plain.effect.delay("after")
    worker.cont_tree()
    effects.wait_count("after", 1)


def test_an_app_that_cannot_be_loaded_is_reported_with_its_log(start_worker):
    with pytest.raises(AssertionError, match="no_such_app"):
        start_worker("tests.apps.no_such_app:app")


def test_a_wait_for_the_log_that_is_in_vain_says_where_the_worker_is(
    redis_url, load_app, start_worker
):
    load_app("tests.apps.plain", TEST_BROKER=redis_url)
    worker = start_worker("tests.apps.plain:app")

    with pytest.raises(DeadlineMissed, match="asynloop"):
        worker.wait_log("never said", 0.1)
    worker.kill_tree()
    with pytest.raises(DeadlineMissed, match="the worker ended with -9"):
        worker.wait_log("never said", 0.1)
