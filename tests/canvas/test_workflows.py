"""Members that retry, crash, fail, are replaced or ignored: what becomes of their workflow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import chain, chord
from celery.exceptions import ChordError

from celery_idem import Poisoned
from tests.canvas.conftest import DEADLINE_S, effects_of, names, wait_quiet
from tests.tasks.stage import Stage, open_stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory, "tests.apps.flows", TEST_IDEM='{"lease_s": 1}') as stage:
        stage.start_worker(concurrency=2)
        yield stage


# --- members that retry, crash, fail ---------------------------------------------------------


def test_members_that_retry_and_crash_are_still_one_part_each(stage: Stage) -> None:
    a, b, c = names(3)
    tasks = stage.tasks
    before = stage.effects.count("body")
    header = [
        tasks.mark.s(label=a),
        tasks.stubborn.s(label=b, times=2),
        tasks.pill.s(label=c, times=1),
    ]

    result = chord(header, tasks.body.s())()

    assert result.get(timeout=DEADLINE_S) == sorted([a, b, c])
    wait_quiet(stage)
    assert effects_of(stage, a, b, c) == {a: 1, b: 1, c: 1}
    assert stage.effects.count("body") == before + 1


def test_a_chain_goes_on_behind_a_member_that_retries_and_one_that_crashes(stage: Stage) -> None:
    a, b, c = names(3)
    tasks = stage.tasks

    result = chain(
        tasks.stubborn.s(label=a, times=2), tasks.pill.s(label=b, times=2), tasks.mark.s(label=c)
    ).apply_async()

    assert result.get(timeout=DEADLINE_S) == c
    wait_quiet(stage)
    assert effects_of(stage, a, b, c) == {a: 1, b: 1, c: 1}


def test_a_pill_in_a_chord_of_chains_fails_the_chord_visibly(stage: Stage) -> None:
    """C52, first half: the waiter hears of it, with the reason, and the body does not run."""
    a, b, c, d = names(4)
    tasks = stage.tasks
    before = stage.effects.count("body")
    header = [
        chain(tasks.mark.s(label=a), tasks.mark.s(label=b)),
        chain(tasks.pill.s(label=c, times=99), tasks.mark.s(label=d)),
    ]

    result = chord(header, tasks.body.s())()

    with pytest.raises((ChordError, Poisoned), match="3 times"):
        result.get(timeout=DEADLINE_S)
    wait_quiet(stage)
    assert stage.effects.count(f"start:{c}") == 3
    assert effects_of(stage, c, d) == {c: 0, d: 0}
    assert stage.effects.count("body") == before


@pytest.mark.parametrize("kind", ["fails", "pill"])
def test_an_errback_hears_of_a_failure_and_of_poison_once(stage: Stage, kind: str) -> None:
    (a,) = names(1)
    before = stage.effects.count("errback")
    task = {"fails": stage.tasks.fails, "pill": stage.tasks.pill}[kind]
    more = {"times": 99} if kind == "pill" else {}

    result = task.apply_async(kwargs={"label": a, **more}, link_error=stage.tasks.trouble.s())

    stage.effects.wait_count("errback", before + 1, DEADLINE_S)
    wait_quiet(stage)
    errbacks = stage.effects.lines("errback")[before:]
    assert [line["failed"] for line in errbacks] == [result.id]


def test_a_failed_member_fails_its_chord_and_a_second_chord_runs(stage: Stage) -> None:
    a, b, c, d = names(4)
    tasks = stage.tasks

    first = chord([tasks.mark.s(label=a), tasks.fails.s(label=b)], tasks.body.s())()
    second = chord([tasks.mark.s(label=c), tasks.mark.s(label=d)], tasks.body.s())()

    with pytest.raises((ChordError, RuntimeError), match="can't be done"):
        first.get(timeout=DEADLINE_S)
    assert second.get(timeout=DEADLINE_S) == [c, d]


# --- replaced and ignored --------------------------------------------------------------------


def test_a_task_that_replaces_itself_goes_on_under_its_own_id(stage: Stage) -> None:
    (a,) = names(1)

    result = stage.tasks.replaces.delay(a, 3)

    assert result.get(timeout=DEADLINE_S) == a
    wait_quiet(stage)
    assert [stage.effects.count(f"start:{a}:{left}") for left in (3, 2, 1, 0)] == [1, 1, 1, 1]
    assert stage.effects.count(a) == 1


def test_a_replacement_that_starts_before_its_original_has_left_is_not_a_stranger(
    stage: Stage,
) -> None:
    """The replacement has the same task id and other arguments; the key is still claimed by the
    run that sent it."""
    gate = stage.gate("replaced")

    result = stage.tasks.replaces_slowly.delay(str(gate), 1)
    stage.effects.wait_count("replaced", 1, DEADLINE_S)
    stage.effects.wait_count("slow", 1, DEADLINE_S)
    gate.touch()

    assert result.get(timeout=DEADLINE_S) == "slow"
    wait_quiet(stage)
    assert stage.effects.count("slow") == 1


def test_a_task_that_is_replaced_by_a_chord_hands_its_own_chain_on(stage: Stage) -> None:
    a, b, c = names(3)

    result = chain(stage.tasks.splits.s([a, b]), stage.tasks.mark.s(label=c)).apply_async()

    assert result.get(timeout=DEADLINE_S) == c
    wait_quiet(stage)
    assert effects_of(stage, a, b, c) == {a: 1, b: 1, c: 1}


def test_a_body_that_raises_ignore_is_not_done_and_its_key_is_free(stage: Stage) -> None:
    (a,) = names(1)
    sent = [stage.tasks.ignores.apply_async((a,), task_id=f"ignored-{a}") for _ in range(2)]

    stage.effects.wait_count(a, 2, DEADLINE_S)
    wait_quiet(stage)

    record = stage.record(f"flows.ignores:ignored-{a}")
    assert record is not None
    assert (record.state.name, record.releases, record.failures) == ("FREE", 2, 0)
    assert sent[0].state == "PENDING"
