"""A member that dies between its result and its ack: each follow-up once, none missing (C51)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group

from tests.canvas.conftest import DEADLINE_S, effects_of, names, wait_quiet
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    moments = tmp_path_factory.mktemp("moments")
    with open_stage(
        tmp_path_factory, "tests.apps.flows", TEST_MOMENTS=str(moments), TEST_IDEM='{"lease_s": 2}'
    ) as stage:
        # One process each: a worker whose prefetch is full has no fetch under way, in which kombu's
        # own Redis transport would lose a message with its worker (docs/guarantees.md).
        for _ in range(2):
            stage.start_worker(concurrency=1, wait=False)
        for worker in stage.workers:
            worker.wait_ready()
        yield stage


@pytest.fixture
def sentence(stage: Stage) -> Callable[..., None]:
    """``sentence(moment, task_id, how)``: the process that gets there dies, once."""
    folder = Path(os.environ["TEST_MOMENTS"])

    def write(moment: str, task_id: str, how: str = "child") -> None:
        (folder / f"{moment}:{task_id}").write_text(how)

    return write


@pytest.fixture(autouse=True)
def all_workers_up(stage: Stage) -> None:
    for worker in stage.workers:
        if worker.returncode is not None:
            worker.start().wait_ready()


@pytest.mark.parametrize("how", ["child", "tree"])
@pytest.mark.parametrize("moment", ["done", "published", "part", "settled"])
def test_a_chain_goes_on_once_whenever_its_first_member_dies(
    stage: Stage, sentence: Any, moment: str, how: str
) -> None:
    """C51: after a's result is recorded and before b is published; and after b is published."""
    a, b, c = names(3)
    mark = stage.tasks.mark
    flow = chain(mark.s(label=a), mark.s(label=b), mark.s(label=c))
    steps, results = flow.prepare_steps((), {}, flow.tasks)
    first, second = results[-1].id, results[-2].id
    sentence(moment, second if moment == "published" else first, how)
    deaths = stage.effects.count(f"died:{moment}")

    steps[-1].apply_async(chain=steps[:-1])

    assert results[0].get(timeout=DEADLINE_S) == c
    wait_quiet(stage)
    assert effects_of(stage, a, b, c) == {a: 1, b: 1, c: 1}
    assert stage.effects.count(f"died:{moment}") == deaths + 1


@pytest.mark.parametrize("moment", ["done", "part"])
@pytest.mark.parametrize("shape", ["task", "chain", "group", "chord", "two"])
def test_linked_work_runs_once_whenever_its_parent_dies(
    stage: Stage, sentence: Any, shape: str, moment: str
) -> None:
    a, b, c = names(3)
    mark = stage.tasks.mark
    one, other = mark.s(label=b), mark.s(label=c)
    linked: list[Any] = {
        "task": [one],
        "chain": [chain(one, other)],
        "group": [group(one, other)],
        "chord": [chord([one], other)],
        "two": [one, other],
    }[shape]
    task_id = str(uuid.uuid4())
    sentence(moment, task_id)
    deaths = stage.effects.count(f"died:{moment}")

    mark.apply_async(kwargs={"label": a}, task_id=task_id, link=linked)

    expected = {a: 1, b: 1} if shape == "task" else {a: 1, b: 1, c: 1}
    wait_until(
        lambda: all(effects_of(stage, *expected).values()), DEADLINE_S, f"effects {expected}"
    )
    wait_quiet(stage)
    assert effects_of(stage, *expected) == expected
    assert stage.effects.count(f"died:{moment}") == deaths + 1


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("moment", ["done", "counting", "part", "settled"])
def test_a_chords_body_runs_once_with_every_part_whenever_a_member_dies(
    stage: Stage, sentence: Any, moment: str, members: int
) -> None:
    """C50 and C51, with the Redis backend."""
    labels = names(members)
    header = [stage.tasks.mark.s(label=label).set(task_id=str(uuid.uuid4())) for label in labels]
    sentence(moment, header[-1].options["task_id"])
    bodies, deaths = stage.effects.count("body"), stage.effects.count(f"died:{moment}")

    result = chord(header, stage.tasks.body.s()).apply_async()

    assert result.get(timeout=DEADLINE_S) == labels
    wait_quiet(stage)
    assert effects_of(stage, *labels) == dict.fromkeys(labels, 1)
    assert stage.effects.count("body") == bodies + 1
    assert stage.effects.count(f"died:{moment}") == deaths + 1


@pytest.mark.parametrize("how", ["child", "tree"])
def test_a_chords_body_is_sent_though_who_counted_the_last_part_dies_at_it(
    stage: Stage, sentence: Any, how: str
) -> None:
    """Celery from 5.7 on lets nobody else send the body for some seconds after that death, which
    the member's message must outlast: 8 where the publish is not retried, else 21 or more."""
    labels = names(3)
    header = [stage.tasks.mark.s(label=label) for label in labels]
    body_id = str(uuid.uuid4())
    sentence("publishing", body_id, how)
    bodies, deaths = stage.effects.count("body"), stage.effects.count("died:publishing")

    result = chord(header, stage.tasks.body.s().set(task_id=body_id, retry=False)).apply_async()

    assert result.get(timeout=DEADLINE_S) == labels
    wait_quiet(stage)
    assert effects_of(stage, *labels) == dict.fromkeys(labels, 1)
    assert stage.effects.count("body") == bodies + 1
    assert stage.effects.count("died:publishing") == deaths + 1


@pytest.mark.parametrize("how", ["child", "tree"])
def test_a_task_that_dies_after_it_sent_its_replacement_is_replaced_once(
    stage: Stage, sentence: Any, how: str
) -> None:
    """Its message comes back when the replacement, of the same id, is on its way or done."""
    (a,) = names(1)
    task_id = str(uuid.uuid4())
    sentence("published", task_id, how)
    deaths, errors = stage.effects.count("died:published"), stage.effects.count("errback")

    result = stage.tasks.replaces.apply_async(
        (a, 1), task_id=task_id, link_error=stage.tasks.trouble.s()
    )

    assert result.get(timeout=DEADLINE_S) == a
    wait_quiet(stage)
    assert stage.effects.count(a) == 1
    assert stage.effects.count("died:published") == deaths + 1
    assert stage.effects.count("errback") == errors, "and nobody was told of a failure"
