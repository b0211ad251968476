"""A retry, or a copy that waits, that the broker can't take: the message stays (DESIGN §6.4)."""

from __future__ import annotations

from typing import Any

import pytest

from celery_idem.core.record import State
from tests.faults.conftest import APP, DEADLINE_S, record_of
from tests.support.effects import Effects


@pytest.fixture
def apart(load: Any, make_redis: Any, redis_server: Any, fault_proxy: Any) -> tuple[Any, Any]:
    """The app, and the line to its broker; store and results are on a server of their own."""
    other = make_redis("store")
    proxy = fault_proxy(redis_server.address)
    tasks = load(
        idem={"store": other.url(), "lease_s": 1.5},
        TEST_BACKEND=other.url(1),
        TEST_CONF='{"task_publish_retry_policy": {"max_retries": 1, "interval_start": 0.1}}',
    )
    return tasks, proxy


def test_a_retry_that_can_not_be_published_goes_back_to_the_queue(
    apart: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    """Celery drops the message here; nothing would ever run again."""
    tasks, proxy = apart
    worker = start_worker(APP, env={"TEST_BROKER": proxy.url()})
    result = tasks.tries.delay("t", str(gate()))
    effects.wait_count("start:t", 1)

    proxy.cut()
    gate(1).touch()
    worker.wait_log(rf"tries\[{result.id}\] reject requeue=True", DEADLINE_S)
    proxy.heal()
    effects.wait_count("start:t", 2, DEADLINE_S)
    for number in (2, 3, 4):
        gate(number).touch()

    assert result.get(timeout=DEADLINE_S) == 1
    assert effects.count("t") == 1
    record = record_of(tasks, "faulty.tries:tries:t")
    assert (record.state, record.crashes) == (State.DONE, 0)


def test_a_waiting_copy_that_can_not_be_published_leaves_the_message_where_it_is(
    apart: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    """The loser of a conflict sends itself again later; with the broker gone it can't."""
    tasks, proxy = apart
    start_worker(APP)
    holder = tasks.work.delay("held", str(gate()))
    effects.wait_count("start:held", 1)
    env = {"TEST_BROKER": proxy.url(), "TEST_CONFLICT": str(gate("conflict"))}
    loser_worker = start_worker(APP, env=env)
    loser = tasks.work.delay("held", str(gate()))
    effects.wait_count("conflict", 1)

    proxy.cut()
    gate("conflict").touch()
    loser_worker.wait_log("could not be sent again", DEADLINE_S)
    gate(1).touch()
    value = holder.get(timeout=DEADLINE_S)
    proxy.heal()

    assert loser.get(timeout=DEADLINE_S) == value
    assert effects.count("start:held") == 1
