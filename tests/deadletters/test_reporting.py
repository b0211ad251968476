"""A job that is done, and a result backend that can't be told: no dead letter, and told later."""

from __future__ import annotations

import pytest

from celery_idem.core.record import State
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.tasks.stage import open_stage

DEADLINE_S = 90


def test_a_done_job_whose_result_could_not_be_stored_is_no_dead_letter(
    tmp_path_factory: pytest.TempPathFactory, make_redis: type[RedisServer]
) -> None:
    """Found by the storm: Redis restarted between the record and Celery's own result."""
    backend = make_redis("backend")
    with open_stage(tmp_path_factory, "tests.apps.letters", TEST_BACKEND=backend.url()) as stage:
        worker = stage.start_worker()
        gate = stage.gate("report")
        sent = stage.tasks.waits.delay("reported", str(gate))
        wait_until(lambda: _is(stage, State.RUNNING), DEADLINE_S, "a running body")

        backend.kill()
        gate.touch()
        worker.wait_log(r"the work is done, and its result could not be reported", DEADLINE_S)
        backend.start()

        assert sent.get(timeout=DEADLINE_S) == "reported"
        assert stage.effects.count("reported") == 1
        assert letters_of(stage.tasks.app).count(Filter()) == 0
        assert _is(stage, State.DONE)


def _is(stage: object, state: State) -> bool:
    record = stage.record("letters.waits:waits:reported")  # type: ignore[attr-defined]
    return record is not None and record.state is state
