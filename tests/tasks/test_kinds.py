"""Every way to write a task keeps the promise (DESIGN §3)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from celery.exceptions import TaskRevokedError

from celery_idem import IdempotentTask, KeyInvalid, ResultUnavailable
from celery_idem.core.record import State
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage

DEADLINE_S = 60

#: task → the effect that its body has
KINDS = {
    "decorated": "decorated",
    "shared": "shared",
    "class_based": "class_based",
    "around": "inside around",
    "within": "inside within",
    "bound": "bound",
    "limited": "limited",
    "untyped": "untyped",
    "prior": "prior",
    "late": "late",
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory, "tests.apps.kinds") as stage:
        stage.start_worker(concurrency=2)
        yield stage


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_written_in_this_way_runs_once_for_two_calls_that_mean_the_same(
    stage: Stage, kind: str
) -> None:
    task = getattr(stage.tasks, kind)

    first, second = task.delay(7), task.delay(n=7, more="")

    assert (first.get(timeout=DEADLINE_S), second.get(timeout=DEADLINE_S)) == (7, 7)
    assert stage.effects.count(KINDS[kind]) == 1


def test_a_call_in_the_users_base_class_sees_every_delivery_and_one_behind_ours_every_run(
    stage: Stage,
) -> None:
    before = stage.effects.count("around"), stage.effects.count("timed")
    for task in (stage.tasks.around, stage.tasks.within):
        for _ in range(2):
            assert task.delay(8).get(timeout=DEADLINE_S) == 8

    assert stage.effects.count("around") - before[0] == 2
    assert stage.effects.count("timed") - before[1] == 1
    line = stage.effects.lines("inside within")[-1]
    assert line["fence"] > 0, "the body behind the mixin still has its request"
    assert line["task_id"]


def test_a_pydantic_task_is_keyed_by_a_field_and_gives_the_duplicate_what_it_gave_the_first(
    stage: Stage,
) -> None:
    first = stage.tasks.typed.delay({"number": 3})
    second = stage.tasks.typed.delay(order=stage.tasks.Order(number=3).model_dump())

    expected = {"number": 3, "note": "done"}
    assert first.get(timeout=DEADLINE_S) == expected
    with pytest.raises(Exception, match="other arguments"):
        second.get(timeout=DEADLINE_S)
    third = stage.tasks.typed.delay(order={"number": 3})
    assert third.get(timeout=DEADLINE_S) == expected
    assert [line["kind"] for line in stage.effects.lines("typed")] == ["Order"]


def test_the_priority_is_kept_by_a_retry(stage: Stage) -> None:
    before = len(stage.effects.lines("prior"))

    assert stage.tasks.prior.delay(9, "retry").get(timeout=DEADLINE_S) == 9

    assert [line["priority"] for line in stage.effects.lines("prior")[before:]] == [3, 3]


@pytest.mark.parametrize("how", ["retry", "copy"])
def test_what_a_call_asked_for_is_kept_by_its_retry_and_by_its_copy(stage: Stage, how: str) -> None:
    """The serializer, without which it could not be sent again, and what may be shown of the
    arguments."""
    before = len(stage.effects.lines("asked"))

    result = stage.tasks.asked.apply_async(
        (how, {"b", "a"}, how), serializer="literal", argsrepr="(hidden)"
    )

    assert result.get(timeout=DEADLINE_S) == "done"
    seen = [(run["secrets"], run["shown"]) for run in stage.effects.lines("asked")[before:]]
    assert seen == [(["a", "b"], "(hidden)")] * 2


def test_a_retry_may_be_given_a_producer(stage: Stage) -> None:
    """One of ``apply_async``'s options, which Celery's ``retry`` hands on."""
    assert stage.tasks.prior.delay(10, "retry with a producer").get(timeout=DEADLINE_S) == 10

    assert record_is_done(stage, "kinds.prior:10")


def test_a_task_without_a_result_runs_once_too(stage: Stage) -> None:
    for _ in range(2):
        stage.tasks.silent.delay(1)
    assert stage.tasks.decorated.delay(100).get(timeout=DEADLINE_S) == 100
    wait_until(lambda: record_is_done(stage, "kinds.silent:1"), DEADLINE_S, "the silent task")

    assert stage.effects.count("silent") == 1


def test_an_expired_delivery_claims_nothing(stage: Stage) -> None:
    past = datetime.now(timezone.utc) - timedelta(seconds=5)

    with pytest.raises(TaskRevokedError):
        stage.tasks.late.apply_async((2,), expires=past).get(timeout=DEADLINE_S)

    assert stage.record("kinds.late:2") is None
    assert stage.tasks.late.delay(2).get(timeout=DEADLINE_S) == 2


def test_wrong_arguments_are_refused_by_the_caller_or_fail_the_task(stage: Stage) -> None:
    with pytest.raises(TypeError):
        stage.tasks.decorated.delay()
    with pytest.raises((KeyInvalid, TypeError)):
        stage.tasks.untyped.delay().get(timeout=DEADLINE_S)


def test_a_result_that_can_not_be_written_does_not_undo_the_job(stage: Stage) -> None:
    """It is done; what can't be brought back is an error, never a wrong value."""
    stage.tasks.unwritable.delay(1)
    wait_until(lambda: record_is_done(stage, "kinds.unwritable:1"), DEADLINE_S, "the first run")
    kept = stage.tasks.unwritable_kept
    with pytest.raises(Exception, match=r"(?i)serializable|encode"):
        kept.delay(1).get(timeout=DEADLINE_S)
    again = stage.tasks.unwritable.delay(1)
    with pytest.raises(ResultUnavailable, match="not kept"):
        kept.delay(1).get(timeout=DEADLINE_S)

    assert stage.effects.count("unwritable_kept") == 1
    worker = stage.workers[0]
    worker.wait_log(rf"{again.id}\] raised unexpected: ResultUnavailable")
    assert stage.effects.count("unwritable") == 1


def test_a_task_that_calls_itself_as_a_function_is_one_run(stage: Stage) -> None:
    assert stage.tasks.recursive.delay(4).get(timeout=DEADLINE_S) == 24
    assert stage.tasks.recursive.delay(4).get(timeout=DEADLINE_S) == 24

    assert stage.effects.count("recursive") == 4
    record = stage.record("kinds.recursive:4")
    assert record is not None
    assert record.runs == 1


@pytest.mark.parametrize(
    ("first", "told"), [(0, "went on"), (1, "retried")], ids=["body first", "retry first"]
)
def test_a_retry_that_lets_the_body_go_on_is_the_one_that_counts(
    stage: Stage, first: int, told: str
) -> None:
    """Whichever of the two ends first: the record is the retry's. The result of the task's id is
    what Celery was told first, as of any task: a success is not written over."""
    n, gate = first + 1, stage.gate(f"half-{first}")
    sent = stage.tasks.half.delay(n, str(gate))
    for run in (0, 1):
        stage.effects.wait_count(f"half:{n}:{run}", 1, DEADLINE_S)

    Path(f"{gate}-{first}").touch()
    assert sent.get(timeout=DEADLINE_S) == told
    Path(f"{gate}-{1 - first}").touch()
    wait_until(lambda: record_is_done(stage, f"kinds.half:{n}"), DEADLINE_S, "the retry")

    again = [stage.tasks.half.delay(n, str(gate)) for _ in range(4)]
    assert [it.get(timeout=DEADLINE_S) for it in again] == ["retried"] * 4
    assert stage.tasks.app.AsyncResult(sent.id).result == told
    assert [stage.effects.count(f"half:{n}:{run}") for run in (0, 1)] == [1, 1]


def record_is_done(stage: Stage, key: str) -> bool:
    record = stage.record(key)
    return record is not None and record.state is State.DONE


def test_as_the_apps_default_class_it_leaves_celerys_own_tasks_alone(
    redis_url: str, effects: Any, load_app: Any, start_worker: Any
) -> None:
    tasks = load_app("tests.apps.default_class", TEST_BROKER=redis_url)
    start_worker("tests.apps.default_class:app", concurrency=2)

    sent = [tasks.pay.delay(1) for _ in range(3)]
    parts = chord([tasks.pay.s(2), tasks.pay.s(3)], tasks.app.tasks["celery.accumulate"].s())()

    assert [s.get(timeout=DEADLINE_S) for s in sent] == [1, 1, 1]
    assert parts.get(timeout=DEADLINE_S) is not None
    assert effects.count("pay") == 3
    assert isinstance(tasks.pay, IdempotentTask)
    for name in ("celery.accumulate", "celery.backend_cleanup", "celery.chord"):
        own = tasks.app.tasks[name]
        assert own.acks_late is False
        assert "celery_idem" not in str(own.Request)
