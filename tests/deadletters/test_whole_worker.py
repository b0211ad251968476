"""A pill that takes the whole worker with it: counted all the same, and nobody else is blamed."""

from __future__ import annotations

from typing import Any

import pytest

from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Reason
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage

DEADLINE_S = 90


def restart_until(stage: Stage, worker: Any, over: Any) -> int:
    """What a supervisor does; returns the number of restarts."""
    restarts = 0

    def look() -> bool:
        nonlocal restarts
        if over():
            return True
        if worker.returncode is not None:
            worker.kill_tree()
            worker.start()
            restarts += 1
        return False

    wait_until(look, DEADLINE_S, lambda: f"the end; seen: {stage.effects.keys()}")
    return restarts


def letters(stage: Stage) -> list[tuple[str, Reason]]:
    return [(it.key, it.reason) for it in letters_of(stage.tasks.app).page(Filter())]


@pytest.mark.slow
def test_a_solo_worker_dies_three_times_and_no_more(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """C39: 11 starts in 40 s on stock Celery, without end."""
    with open_stage(tmp_path_factory, "tests.apps.letters") as stage:
        stage.tasks.pill.delay("solo")
        for number in range(3):
            stage.tasks.good.delay(f"good-{number}")
        worker = stage.start_worker(pool="solo", wait=False)

        restarts = restart_until(
            stage,
            worker,
            lambda: letters(stage) and all(stage.effects.count(f"good-{n}") == 1 for n in range(3)),
        )

        assert letters(stage) == [("letters.pill:pill:solo", Reason.POISON)]
        assert stage.effects.count("start:solo") == 3
        assert restarts <= 3


@pytest.mark.slow
def test_neighbours_of_a_pill_are_not_blamed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """C41: threads, one pill and seven slow good jobs in one process."""
    with open_stage(tmp_path_factory, "tests.apps.letters") as stage:
        for number in range(7):
            stage.tasks.slow.delay(f"slow-{number}", 1.0)
        stage.tasks.pill.delay("threads")
        worker = stage.start_worker(pool="threads", concurrency=8, wait=False)

        restart_until(
            stage,
            worker,
            lambda: letters(stage) and all(stage.effects.count(f"slow-{n}") >= 1 for n in range(7)),
        )

        assert letters(stage) == [("letters.pill:pill:threads", Reason.POISON)]
        assert stage.effects.count("start:threads") == 3
        assert [stage.effects.count(f"slow-{n}") for n in range(7)] == [1] * 7
