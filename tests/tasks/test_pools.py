"""The promise in every pool: once, duplicates, conflicts, long bodies, and a kill (S-V2, S-V5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_idem.core.errors import BodyAborted
from celery_idem.core.record import State
from tests.support.round_trips import wait_acked
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage

LEASE_S = 3.0
DEADLINE_S = 60

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]


@pytest.fixture(scope="module", params=POOLS)
def stage(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two workers of one pool: solo does one thing at a time."""
    with open_stage(
        tmp_path_factory, "tests.apps.idem", TEST_IDEM=f'{{"lease_s": {LEASE_S}}}'
    ) as stage:
        for _ in range(2):
            stage.start_worker(pool=request.param, concurrency=2, wait=False)
        for worker in stage.workers:
            worker.wait_ready()
        yield stage


def test_a_job_sent_many_times_is_done_once(stage: Stage) -> None:
    sent = [stage.tasks.pay.delay("many", result={"n": 0}) for _ in range(12)]

    assert [s.get(timeout=DEADLINE_S) for s in sent] == [{"n": 0}] * 12
    assert stage.effects.count("many") == 1


def test_a_conflict_waits_and_gets_the_holders_result(stage: Stage) -> None:
    gate = stage.gate("conflict")
    holder = stage.tasks.gated.delay("conflict", str(gate))
    stage.effects.wait_count("start:conflict", 1)
    loser = stage.tasks.gated.delay("conflict", str(gate))
    wait_until(
        lambda: any(f"[{loser.id}] received" in w.log_text() for w in stage.workers),
        DEADLINE_S,
        "the duplicate to be received",
    )
    gate.touch()

    assert loser.get(timeout=DEADLINE_S) == holder.get(timeout=DEADLINE_S)
    assert stage.effects.count("start:conflict") == 1


def test_a_body_longer_than_two_leases_keeps_its_lease(stage: Stage) -> None:
    gate = stage.gate("long")
    result = stage.tasks.gated.delay("long", str(gate))
    stage.effects.wait_count("start:long", 1)
    first = stage.record("idem.gated:gated:long")
    assert first is not None
    wait_until(
        lambda: (
            (now := stage.record("idem.gated:gated:long"))
            and now.lease_until_ms > first.lease_until_ms + 2 * 1000 * LEASE_S
        ),
        DEADLINE_S,
        "renewals over two leases",
    )
    gate.touch()

    result.get(timeout=DEADLINE_S)
    record = stage.record("idem.gated:gated:long")
    assert record is not None
    assert (record.state, record.runs, record.crashes) == (State.DONE, 1, 0)
    assert stage.effects.count("start:long") == 1
    assert not any("lease lost" in w.log_text() for w in stage.workers)


def test_a_failed_job_gives_its_key_back_and_a_retry_keeps_it(stage: Stage) -> None:
    with pytest.raises(RuntimeError, match="can't be done"):
        stage.tasks.always_fails.delay("f").get(timeout=DEADLINE_S)
    assert stage.tasks.fails.delay("r", times=2).get(timeout=DEADLINE_S) == 2

    failed, retried = stage.record("idem.always_fails:af:f"), stage.record("idem.fails:fails:r")
    assert failed is not None
    assert retried is not None
    assert (failed.state, failed.failures) == (State.FREE, 1)
    assert (retried.state, retried.runs) == (State.DONE, 3)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("cancelled", r"CancelledError\('enough'\), which is no Exception"), ("memory", "enough")],
)
def test_a_body_that_ends_with_what_is_no_ordinary_error_has_failed_like_any(
    stage: Stage, kind: str, error: str
) -> None:
    """On stock Celery the one is pending for ever, unacked; the other ends worker after worker."""
    result = stage.tasks.ends_with.delay(kind)
    with pytest.raises((BodyAborted, MemoryError), match=error):
        result.get(timeout=DEADLINE_S)
    wait_acked(stage.server, DEADLINE_S)

    record = stage.record(f"idem.ends_with:ends:{kind}")
    assert record is not None
    assert (record.state, record.failures, record.crashes) == (State.FREE, 1, 0)
    assert stage.effects.count(f"start:{kind}") == 1
    assert [worker.returncode for worker in stage.workers] == [None, None]


def test_the_job_of_a_killed_worker_is_done_by_the_other(stage: Stage) -> None:
    """C05, S-V2. The last of its pool: one worker is gone after it."""
    gate = stage.gate("killed")
    result = stage.tasks.gated.delay("killed", str(gate))
    stage.effects.wait_count("start:killed", 1)
    victim = stage.worker_of(stage.effects.lines("start:killed")[0]["pid"])

    victim.kill_tree()
    stage.effects.wait_count("start:killed", 2, DEADLINE_S)
    gate.touch()

    assert result.get(timeout=DEADLINE_S) == f"killed by {result.id}"
    assert stage.effects.count("killed") == 1
    fences = [line["fence"] for line in stage.effects.lines("start:killed")]
    assert fences[1] > fences[0] > 0
