"""The lease goes by the time limit that counts for the call, not by the task's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage

DEADLINE_S = 60
LEASE_MS = 2000


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory, "tests.apps.kinds") as stage:
        yield stage


@pytest.mark.parametrize("by_name", [False, True])
def test_a_call_with_more_time_than_its_task_keeps_its_lease(stage: Stage, by_name: bool) -> None:
    """The task has one second: a second and a lease later a copy would run beside it."""
    stage.start_worker(concurrency=2)
    gate = stage.gate("patient")
    args, key = (1, str(gate)), "kinds.patient:1"
    send = stage.tasks.app.send_task if by_name else stage.tasks.patient.apply_async
    sent = send(*(("kinds.patient",) if by_name else ()), args, time_limit=300)
    stage.effects.wait_count("patient", 1, DEADLINE_S)
    record = stage.record(key)
    assert record is not None
    first_ms, limit_ms = record.lease_until_ms, 1000

    def is_renewed_past_the_tasks_limit() -> bool:
        now = stage.record(key)
        return now is not None and now.lease_until_ms > first_ms + limit_ms + LEASE_MS

    wait_until(is_renewed_past_the_tasks_limit, 20, "renewals")
    again = stage.tasks.patient.delay(*args)
    gate.touch()

    assert [it.get(timeout=DEADLINE_S) for it in (sent, again)] == [1, 1]
    assert stage.effects.count("patient") == 1
    record = stage.record(key)
    assert record is not None
    assert (record.runs, record.crashes) == (1, 0)
