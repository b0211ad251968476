"""A task may name a request class of its own (Celery's guide shows how): ours is behind it, or no
letter would be kept, and no lease by the worker's main process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from celery.worker.request import Request

from celery_idem import ConfigError
from celery_idem.deadletters.letter import Reason
from celery_idem.ending import joined
from celery_idem.request import IdempotentRequest
from tests.deadletters.looking import DEADLINE_S, letter_of
from tests.tasks.stage import Stage, open_stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    idem = json.dumps({"lease_s": 30, "max_crashes": 2, "dead_letters": {"all_tasks": True}})
    with open_stage(tmp_path_factory, "tests.apps.kinds", TEST_IDEM=idem) as stage:
        stage.start_worker(concurrency=1)
        yield stage


def test_its_failures_are_letters_and_both_classes_hear_of_its_ends(stage: Stage) -> None:
    dead = stage.tasks.own_request.delay(1, "fail")

    assert letter_of(stage, dead.id).reason is Reason.FAILURE
    assert stage.tasks.own_request.delay(2).get(timeout=DEADLINE_S) == 2
    assert "kinds.own_request" in {line["task"] for line in stage.effects.lines("own request")}


def test_a_lost_process_frees_its_key_at_once(stage: Stage) -> None:
    """Not after its lease of 30 s; and it is counted, so that a pill is a letter."""
    dead = stage.tasks.own_request.delay(3, "die")

    assert letter_of(stage, dead.id).reason is Reason.POISON
    assert stage.effects.count("own_request") >= 2


def test_plain_tasks_that_opt_in_keep_theirs_too(stage: Stage) -> None:
    dead = stage.tasks.plain_request.delay(4)

    assert letter_of(stage, dead.id).reason is Reason.FAILURE


def test_one_that_knows_ours_is_taken_as_it_is_and_one_that_can_not_be_joined_is_an_error() -> None:
    class Ours(IdempotentRequest):
        pass

    assert joined(Ours, IdempotentRequest, "t") is Ours
    assert joined("celery.worker.request:Request", IdempotentRequest, "t") is IdempotentRequest
    assert joined(Request, IdempotentRequest, "t") is IdempotentRequest
    with pytest.raises(ConfigError, match=r"t: Request=.* can't be joined with"):
        joined(lambda message: None, IdempotentRequest, "t")
