"""C24: after Redis was away, a worker that says it is connected takes messages again."""

from __future__ import annotations

import time
from typing import Any

import pytest

from celery_idem.core.record import State
from tests.faults.conftest import APP, DEADLINE_S, record_of
from tests.support.effects import Effects
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

JOBS = [f"job-{number}" for number in range(10)]


def broker(server: RedisServer, scheme: str) -> str:
    return server.url().replace("redis", scheme, 1)


def stop_for(server: RedisServer, seconds: float) -> None:
    """In order, and started again from its file when the time is over."""
    end = time.monotonic() + seconds
    server.stop()
    wait_until(lambda: time.monotonic() >= end, what="the end of the outage")
    server.start()


def cut_every_client(server: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@pytest.mark.parametrize("scheme", ["redis", "redis-streams"])
@pytest.mark.parametrize(
    "outage_s", [0.0, 2.0, pytest.param(30.0, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
def test_ten_jobs_run_after_an_outage_and_the_running_one_is_not_run_twice(
    load: Any,
    start_worker: Any,
    effects: Effects,
    gate: Any,
    redis_server: RedisServer,
    scheme: str,
    outage_s: float,
) -> None:
    """C24; 0 seconds: only the connections are cut. The lease (1.5 s) ends in the outage; nobody
    takes it, so its holder has it again."""
    url = broker(redis_server, scheme)
    tasks = load({"store": redis_server.url()}, TEST_BROKER=url, TEST_BACKEND=redis_server.url())
    worker = start_worker(APP, concurrency=2)
    tasks.work.delay("running", str(gate()))
    effects.wait_count("start:running", 1, DEADLINE_S)

    if outage_s:
        stop_for(redis_server, outage_s)
    else:
        cut_every_client(redis_server)
    for job in JOBS:
        tasks.work.delay(job)

    effects.wait_for(lambda it: all(it.count(job) for job in JOBS), 2 * DEADLINE_S, "ten jobs")
    gate(1).touch()
    wait_until(
        lambda: record_of(tasks, "faulty.work:work:running").state is State.DONE,
        DEADLINE_S,
        "the running job's record",
    )
    assert effects.count("start:running") == 1
    assert [effects.count(job) for job in JOBS] == [1] * len(JOBS)
    assert worker.returncode is None


def test_jobs_run_beside_a_long_one_however_often_the_connections_are_cut(
    load: Any, start_worker: Any, effects: Effects, gate: Any, redis_server: RedisServer
) -> None:
    """C24: a child that is busy through one outage is busy through the next as well."""
    tasks = load()
    worker = start_worker(APP, concurrency=2)
    tasks.work.delay("running", str(gate()))
    effects.wait_count("start:running", 1, DEADLINE_S)

    for cut in range(3):
        cut_every_client(redis_server)
        jobs = [f"{job} after cut {cut}" for job in JOBS]
        for job in jobs:
            tasks.work.delay(job)
        effects.wait_for(lambda it, jobs=jobs: all(map(it.count, jobs)), DEADLINE_S, "ten jobs")  # type: ignore[misc]

    assert effects.count("running") == 0
    gate(1).touch()
    effects.wait_count("running", 1, DEADLINE_S)
    assert effects.count("start:running") == 1
    assert worker.returncode is None
