"""Workflows of which every message, whoever sends it, is sent twice (C10, C50)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from celery import chain, chord, group

from tests.canvas.conftest import DEADLINE_S, effects_of, names, wait_quiet
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Whoever sends a message, test or worker, sends it twice."""
    with open_stage(
        tmp_path_factory, "tests.apps.flows", TEST_TWICE="1", TEST_IDEM='{"lease_s": 1}'
    ) as stage:
        stage.start_worker(concurrency=4)
        yield stage


def test_a_chain_of_which_every_message_comes_twice_runs_each_member_once(twice: Stage) -> None:
    a, b, c = names(3)
    mark = twice.tasks.mark

    result = chain(mark.s(label=a), mark.s(label=b), mark.s(label=c)).apply_async()

    assert result.get(timeout=DEADLINE_S) == c
    wait_quiet(twice)
    assert effects_of(twice, a, b, c) == {a: 1, b: 1, c: 1}


def test_a_chord_of_which_every_message_comes_twice_has_one_body_with_every_part(
    twice: Stage,
) -> None:
    """C50: the body once, with all results, after all members."""
    labels = [f"m{n}-{uuid.uuid4().hex[:6]}" for n in range(10)]
    before = twice.effects.count("body")

    result = chord((twice.tasks.mark.s(label=label) for label in labels), twice.tasks.body.s())()

    assert result.get(timeout=DEADLINE_S) == labels
    wait_quiet(twice)
    assert effects_of(twice, *labels) == dict.fromkeys(labels, 1)
    assert twice.effects.count("body") == before + 1


def test_a_group_between_two_tasks_comes_twice_and_runs_once(twice: Stage) -> None:
    a, b, c, d = names(4)
    mark = twice.tasks.mark

    result = chain(
        mark.s(label=a), group(mark.s(label=b), mark.s(label=c)), mark.s(label=d)
    ).apply_async()

    assert result.get(timeout=DEADLINE_S) == d
    wait_quiet(twice)
    assert effects_of(twice, a, b, c, d) == {a: 1, b: 1, c: 1, d: 1}


def test_links_of_a_task_that_comes_twice_run_once(twice: Stage) -> None:
    a, b, c = names(3)
    mark = twice.tasks.mark

    mark.apply_async(kwargs={"label": a}, link=[mark.s(label=b), mark.s(label=c)])

    wait_until(lambda: all(effects_of(twice, a, b, c).values()), DEADLINE_S, "all three")
    wait_quiet(twice)
    assert effects_of(twice, a, b, c) == {a: 1, b: 1, c: 1}


def test_an_errback_of_a_task_that_fails_twice_runs_once(twice: Stage) -> None:
    (a,) = names(1)
    before = twice.effects.count("errback")

    failed = twice.tasks.fails.apply_async(kwargs={"label": a}, link_error=twice.tasks.trouble.s())

    with pytest.raises(RuntimeError, match="can't be done"):
        failed.get(timeout=DEADLINE_S)
    twice.effects.wait_count("errback", before + 1, DEADLINE_S)
    wait_quiet(twice)
    assert twice.effects.count("errback") == before + 1
