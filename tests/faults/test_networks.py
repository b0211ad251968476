"""A slow network, a half-open one, and a worker that is cut off from everybody (S-V2, S-V6)."""

from __future__ import annotations

from typing import Any

import pytest

from celery_idem.core.record import State
from tests.faults.conftest import APP, DEADLINE_S, record_of
from tests.support.effects import Effects
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


def test_on_a_slow_network_jobs_are_done_once_and_leases_are_kept(
    load: Any,
    start_worker: Any,
    effects: Effects,
    gate: Any,
    redis_server: RedisServer,
    fault_proxy: Any,
) -> None:
    """80 ms each way, for broker, store and backend of the worker."""
    proxy = fault_proxy(redis_server.address)
    tasks = load()
    worker = start_worker(APP, concurrency=2, env={"TEST_BROKER": proxy.url()})
    proxy.set(latency_s=0.08)
    result = tasks.work.delay("slow", str(gate()))
    duplicates = [tasks.work.delay("quick") for _ in range(4)]
    effects.wait_count("start:slow", 1, DEADLINE_S)
    first = record_of(tasks, "faulty.work:work:slow").lease_until_ms

    wait_until(
        lambda: record_of(tasks, "faulty.work:work:slow").lease_until_ms > first + 3500,
        DEADLINE_S,
        "renewals over two leases",
    )
    gate(1).touch()

    assert result.get(timeout=DEADLINE_S).startswith("slow by")
    assert len({d.get(timeout=DEADLINE_S) for d in duplicates}) == 1
    assert effects.count("start:slow") == effects.count("quick") == 1
    assert "lease lost" not in worker.log_text()


@pytest.mark.slow
def test_a_half_open_line_to_the_store_costs_time_and_nothing_else(
    load: Any, start_worker: Any, effects: Effects, gate: Any, make_redis: Any, fault_proxy: Any
) -> None:
    """Nothing comes back for longer than a lease; nobody else wants the key."""
    store = make_redis("store")
    proxy = fault_proxy(store.address)
    tasks = load(idem={"store": proxy.url()})
    worker = start_worker(APP)
    result = tasks.work.delay("half", str(gate()))
    effects.wait_count("start:half", 1)

    proxy.set(blackhole="both")
    worker.wait_log("leases can't be renewed", DEADLINE_S)
    gate(1).touch()
    effects.wait_count("half", 1)
    proxy.heal()

    assert result.get(timeout=DEADLINE_S).startswith("half by")
    assert effects.count("start:half") == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_job_of_a_worker_that_is_cut_off_is_done_by_another_and_recorded_once(
    load: Any,
    start_worker: Any,
    effects: Effects,
    gate: Any,
    redis_server: RedisServer,
    fault_proxy: Any,
    pool: str,
) -> None:
    """The body goes on where nobody hears of it; what it reports afterwards is refused."""
    proxy = fault_proxy(redis_server.address)
    tasks = load()
    lonely = start_worker(APP, pool=pool, env={"TEST_BROKER": proxy.url()})
    result = tasks.work.delay("cut", str(gate()))
    effects.wait_count("start:cut", 1)
    start_worker(APP, pool=pool)

    proxy.cut()
    effects.wait_count("start:cut", 2, DEADLINE_S)
    gate(2).touch()
    value = result.get(timeout=DEADLINE_S)
    proxy.heal()
    gate(1).touch()
    lonely.wait_log("lease lost", DEADLINE_S)

    first, second = effects.lines("start:cut")
    assert value == f"cut by {second['pid']}"
    assert first["fence"] < second["fence"]
    record = record_of(tasks, "faulty.work:work:cut")
    assert (record.state, record.fence) == (State.DONE, second["fence"])
    assert tasks.work.delay("cut", str(gate())).get(timeout=DEADLINE_S) == value
