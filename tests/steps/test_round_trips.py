"""What steps cost at the store, by the server's own count: a new one 1, a done one nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.round_trips import counted, store, wait_acked
from tests.support.servers import RedisServer
from tests.tasks.stage import Stage, open_stage

__all__ = ["counted", "store"]

DEADLINE_S = 60
COUNT = 10


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, store: RedisServer) -> Iterator[Stage]:
    plan = tmp_path_factory.mktemp("plan")
    with open_stage(
        tmp_path_factory,
        "tests.apps.stepped",
        TEST_PLAN=str(plan),
        TEST_IDEM=f'{{"store": "{store.url()}", "lease_s": 60, "visibility_keeper": false}}',
    ) as stage:
        (plan / "after:stock").write_text("fail 1")
        stage.start_worker(concurrency=1)
        # a server loads a script at its first call: one more round trip, once
        stage.tasks.order.delay("warm-up").get(timeout=DEADLINE_S)
        wait_acked(stage.server, DEADLINE_S)
        yield stage


def test_a_job_of_three_new_steps_costs_two_and_three(stage: Stage, counted: Any) -> None:
    def act() -> None:
        sent = [stage.tasks.order.delay(f"new-{n}") for n in range(COUNT)]
        for result in sent:
            assert result.get(timeout=DEADLINE_S)[-1] == "stock done"
        wait_acked(stage.server, DEADLINE_S)

    assert counted(act) == (2 + 3) * COUNT


def test_its_duplicate_costs_one(stage: Stage, counted: Any) -> None:
    stage.tasks.order.delay("again").get(timeout=DEADLINE_S)
    wait_acked(stage.server, DEADLINE_S)

    def act() -> None:
        for result in [stage.tasks.order.delay("again") for _ in range(COUNT)]:
            result.get(timeout=DEADLINE_S)
        wait_acked(stage.server, DEADLINE_S)

    assert counted(act) == COUNT


def test_steps_that_are_done_cost_nothing(stage: Stage, counted: Any) -> None:
    """It fails behind the second step: claim, 2 steps, the look before the retry is published,
    release; then claim, the third step, complete."""
    Path(os.environ["TEST_PLAN"], "after:email").write_text("fail 1")

    def act() -> None:
        stage.tasks.order.delay("resumed").get(timeout=DEADLINE_S)
        wait_acked(stage.server, DEADLINE_S)

    assert counted(act) == (1 + 2 + 2) + (1 + 1 + 1)
