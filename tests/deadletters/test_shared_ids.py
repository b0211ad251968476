"""C10: two messages with one task id and other arguments are two letters, and neither gets the
other's result."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.edit import prepare, save
from celery_idem.deadletters.letter import Letter, Reason
from celery_idem.deadletters.replay import Fate, dry_run, replay
from tests.deadletters.looking import DEADLINE_S
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage

ID = "daily-2026-11-30"


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory, "tests.apps.letters") as stage:
        stage.start_worker(concurrency=2)
        yield stage


def letters(stage: Stage) -> dict[Reason, Letter]:
    return {letter.reason: letter for letter in letters_of(stage.tasks.app).page(Filter())}


def wait_letters(stage: Stage, count: int) -> dict[Reason, Letter]:
    return wait_until(
        lambda: found if len(found := letters(stage)) == count else None, DEADLINE_S, "letters"
    )


def test_the_letter_of_one_is_not_written_over_by_the_others(stage: Stage) -> None:
    gate = stage.gate("first")
    by_id = stage.tasks.by_id
    by_id.apply_async(("first", str(gate)), task_id=ID)
    stage.effects.wait_count("start:first", 1, DEADLINE_S)
    by_id.apply_async(("second", ""), task_id=ID)
    wait_letters(stage, 1)
    gate.touch()

    found = wait_letters(stage, 2)

    assert b'"first"' in found[Reason.FAILURE].message.body
    assert b'"second"' in found[Reason.KEY_CONFLICT].message.body
    assert stage.effects.count("start:second") == 0


def test_a_replay_does_not_take_the_others_result_for_its_own(stage: Stage) -> None:
    app, by_id = stage.tasks.app, stage.tasks.by_id
    assert by_id.apply_async(("good", ""), task_id=ID).get(timeout=DEADLINE_S) == "good"
    by_id.apply_async(("other", ""), task_id=ID)
    letter = wait_letters(stage, 1)[Reason.KEY_CONFLICT]

    assert dry_run(app, [letter]).fates == {Fate.CONFLICT: 1}
    assert replay(app, [letter]).fates == {Fate.CONFLICT: 1}
    assert letters_of(app).get(letter.id) is not None

    save(app, prepare(app, letter, ["good", ""]))
    [mended] = letters(stage).values()
    assert replay(app, [mended]).fates == {Fate.DONE: 1}
