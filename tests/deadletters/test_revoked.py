"""C65: a revoked task does not run, whoever was there to hear it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Reason
from celery_idem.deadletters.replay import Fate, replay
from tests.deadletters.looking import DEADLINE_S, letter_of
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Any:
    settings = json.dumps({"dead_letters": {"revoked": True, "expired": True}})
    with open_stage(tmp_path_factory, "tests.apps.letters", TEST_IDEM=settings) as stage:
        yield stage


def revoked(stage: Stage, result: Any) -> None:
    """Wait until Celery says REVOKED; nothing may have run."""
    task_id = result.id
    wait_until(
        lambda: stage.tasks.app.AsyncResult(task_id).state == "REVOKED", DEADLINE_S, "REVOKED"
    )


def test_revoked_while_no_worker_was_up(stage: Stage) -> None:
    """(b): it runs on stock Celery."""
    sent = stage.tasks.good.delay("b")
    sent.revoke()
    stage.start_worker()

    revoked(stage, sent)
    assert stage.effects.count("b") == 0


def test_revoked_with_a_countdown_over_a_restart(stage: Stage) -> None:
    """(a): it runs on stock Celery."""
    first = stage.start_worker()
    sent = stage.tasks.good.apply_async(("a",), countdown=8)
    first.wait_log(rf"\[{sent.id}\] received")
    sent.revoke()
    first.wait_log("Tasks flagged as revoked")
    first.term()
    first.wait_exit()
    stage.start_worker()

    revoked(stage, sent)
    assert stage.effects.count("a") == 0


def test_a_revoked_letter_is_kept_and_not_replayed(stage: Stage) -> None:
    """(d); and with dead_letters["revoked"] the message of a revoked task is kept."""
    stage.start_worker()
    dead = stage.tasks.breaks.delay("d")
    letter = letter_of(stage, dead.id)
    stage.tasks.app.control.revoke(dead.id)

    assert replay(stage.tasks.app, [letter]).fates == {Fate.REVOKED: 1}

    sent = stage.tasks.good.apply_async(("r",), countdown=1)
    sent.revoke()
    assert letter_of(stage, sent.id).reason is Reason.REVOKED
    assert stage.effects.count("r") == 0


def test_an_expired_message_is_kept_where_that_is_asked_for(stage: Stage) -> None:
    sent = stage.tasks.good.apply_async(("e",), expires=-1)
    stage.start_worker()

    letter = letter_of(stage, sent.id)
    assert letter.reason is Reason.EXPIRED
    assert stage.effects.count("e") == 0

    assert replay(stage.tasks.app, [letter]).fates == {Fate.RUN: 1}
    stage.effects.wait_count("e", 1, DEADLINE_S)  # its expiry does not kill it again
    assert letters_of(stage.tasks.app).count(Filter()) == 0


def test_revoked_while_no_worker_was_up_where_keys_are_hashed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A worker reads all revoked ids when it starts: those have to be found."""
    settings = json.dumps({"hash_keys": True})
    with open_stage(tmp_path_factory, "tests.apps.letters", TEST_IDEM=settings) as stage:
        sent = stage.tasks.good.delay("h")
        sent.revoke()
        stage.start_worker()

        revoked(stage, sent)
        assert stage.effects.count("h") == 0
        assert "good:h" not in str(stage.server.client().keys())
