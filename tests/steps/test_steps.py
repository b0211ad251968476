"""Jobs of several steps on a real worker that fails and dies in every place (S-S1 to S-S3)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_idem import StepMisused, StepUncertain
from celery_idem.binding import store_of
from tests.support.effects import Effects
from tests.support.processes import end_group, spawn
from tests.support.waiting import wait_until

DEADLINE_S = 60
PLACES = [f"{when}:{step}" for step in ("order", "email", "stock") for when in ("before", "after")]


@pytest.fixture
def plan(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    folder = tmp_path / "plan"
    folder.mkdir()
    monkeypatch.setenv("TEST_PLAN", str(folder))

    def write(point: str, what: str) -> None:
        (folder / point).write_text(what)

    return write


@pytest.fixture
def jobs(plan: Any, redis_url: str, effects: Effects, load_app: Any) -> Any:
    return load_app("tests.apps.stepped", TEST_BROKER=redis_url)


@pytest.fixture
def worker(jobs: Any, start_worker: Any) -> Any:
    return start_worker("tests.apps.stepped:app", concurrency=2)


def test_the_articles_job_resumes_where_it_failed_and_has_each_effect_once(
    jobs: Any, worker: Any, effects: Effects, plan: Any
) -> None:
    """S-S2: step 2 fails, step 3 crashes, every effect is there once."""
    plan("before:email", "fail 1")
    plan("before:stock", "kill 1")

    result = jobs.order.delay(1).get(timeout=DEADLINE_S)

    assert result == ["order done", "email done", "stock done"]
    assert [effects.count(name) for name in ("order", "email", "stock")] == [1, 1, 1]
    record = store_of(jobs.app).get("stepped.order:order:1")
    assert record is not None
    assert (record.runs, record.crashes, record.failures) == (3, 1, 1)
    assert set(record.steps) == {"order", "email", "stock"}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", ["fail", "kill"])
def test_whatever_happens_between_two_steps_each_effect_is_there_once(
    jobs: Any, worker: Any, effects: Effects, plan: Any, place: str, what: str
) -> None:
    plan(place, f"{what} 1")

    assert jobs.order.delay(1).get(timeout=DEADLINE_S)[-1] == "stock done"

    assert [effects.count(name) for name in ("order", "email", "stock")] == [1, 1, 1]


@pytest.mark.parametrize("step", ["order", "email", "stock"])
def test_a_kill_inside_a_plain_step_repeats_that_step_only(
    jobs: Any, worker: Any, effects: Effects, plan: Any, step: str
) -> None:
    """Between an effect and its record nothing can be promised but: at most once more."""
    plan(f"inside:{step}", "kill 1")

    jobs.order.delay(1).get(timeout=DEADLINE_S)

    counts = {name: effects.count(name) for name in ("order", "email", "stock")}
    assert counts == {"order": 1, "email": 1, "stock": 1, step: 2}


def test_a_steps_own_key_is_the_same_in_every_attempt(
    jobs: Any, worker: Any, effects: Effects, plan: Any
) -> None:
    plan("inside:email", "kill 1")

    jobs.order.delay(1).get(timeout=DEADLINE_S)
    jobs.order.delay(2).get(timeout=DEADLINE_S)

    keys = [line["sent"] for line in effects.lines("email")]
    assert keys[0] == keys[1]
    assert keys[2] != keys[0]


@pytest.mark.parametrize("what", ["kill", "fail"])
def test_an_at_most_once_step_is_never_run_twice_and_a_person_is_asked(
    jobs: Any, worker: Any, effects: Effects, plan: Any, what: str
) -> None:
    plan("inside:charge", f"{what} 1")

    with pytest.raises(StepUncertain, match="may or may not"):
        jobs.at_most_once.delay(1).get(timeout=DEADLINE_S)
    assert effects.count("charge") == 1


def test_a_shared_step_is_run_by_whoever_comes_first(
    jobs: Any, worker: Any, effects: Effects
) -> None:
    """S-S3."""
    results = [jobs.sharing.delay(f"job-{n}", 7) for n in range(6)]

    assert {r.get(timeout=DEADLINE_S) for r in results} == {"mail done"}
    assert effects.count("mail") == 1


@pytest.mark.parametrize(("place", "mails"), [("before", 1), ("inside", 2)])
def test_a_shared_step_whose_runner_was_killed_is_run_by_another(
    jobs: Any, worker: Any, effects: Effects, plan: Any, place: str, mails: int
) -> None:
    """S-S3: inside, between the mail and its record, it is sent once more, whoever sends it."""
    plan(f"{place}:mail", "kill 1")

    results = [jobs.sharing.delay(f"job-{n}", 7) for n in range(6)]

    assert {r.get(timeout=2 * DEADLINE_S) for r in results} == {"mail done"}
    assert effects.count("mail") == mails


def test_a_batch_goes_on_behind_the_last_item_that_was_done_wherever_it_was_killed(
    jobs: Any, worker: Any, effects: Effects, plan: Any
) -> None:
    """C12: fifty people get one mail each; the kill comes after every one of them in turn."""
    batches = [f"b{n}" for n in range(50)]
    for n, batch in enumerate(batches):
        plan(f"{batch}:after-line:{n}", "kill 1")

    sent = [jobs.lines.delay(batch, 50) for batch in batches]

    assert [result.get(timeout=4 * DEADLINE_S) for result in sent] == [50] * 50
    seen = Counter(effects.keys())
    assert {seen[f"{batch}:line:{n}"] for batch in batches for n in range(50)} == {1}
    assert {seen[f"point:{batch}:after-line:{n}"] for n, batch in enumerate(batches)} == {1}


def test_a_batch_of_a_killed_worker_goes_on_when_it_is_back(
    jobs: Any, worker: Any, effects: Effects, plan: Any
) -> None:
    """C12: the whole tree is killed after twenty."""
    plan("b:after-line:19", "kill-tree 1")
    result = jobs.lines.delay("b", 50)
    worker.wait_exit()

    worker.start().wait_ready()

    assert result.get(timeout=2 * DEADLINE_S) == 50
    assert [effects.count(f"b:line:{n}") for n in range(50)] == [1] * 50


def test_a_thousand_steps_of_a_loop_are_done_once_each(
    jobs: Any, worker: Any, effects: Effects, plan: Any
) -> None:
    plan("b:after-line:700", "kill 1")

    assert jobs.lines.delay("b", 1000).get(timeout=2 * DEADLINE_S) == 1000

    seen = Counter(effects.keys())
    assert {seen[f"b:line:{n}"] for n in range(1000)} == {1}


@pytest.mark.parametrize("size", [1_000, 1_000_000])
def test_a_large_result_of_a_step_comes_back_after_a_crash(
    jobs: Any, worker: Any, effects: Effects, plan: Any, size: int
) -> None:
    """Above ``max_result_bytes`` (64 KiB) it is kept in the result backend."""
    plan("after-large:b", "kill 1")

    assert jobs.carries.delay("b", size).get(timeout=DEADLINE_S) == size

    assert effects.count("large") == 1


def test_a_memoised_error_is_an_outcome(
    jobs: Any, worker: Any, effects: Effects, plan: Any
) -> None:
    plan("after:declined", "kill 1")

    assert jobs.pay.delay(1).get(timeout=DEADLINE_S) == "insufficient funds 402"
    assert effects.count("declined") == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_an_otp_is_sent_once_in_its_cool_down_under_eight_deliveries(
    jobs: Any, start_worker: Any, effects: Effects, pool: str
) -> None:
    """S-I9: at most once in 60 s per user, though all eight are in work at the same time."""
    start_worker("tests.apps.stepped:app", pool=pool, concurrency=8)

    ann = [jobs.otp.delay("ann", 8) for _ in range(8)]
    bob = jobs.otp.delay("bob")

    assert {r.get(timeout=2 * DEADLINE_S) for r in ann} == {"stepped.cools:ann done"}
    assert bob.get(timeout=DEADLINE_S) == "stepped.cools:bob done"
    assert [effects.count(f"stepped.cools:{user}") for user in ("ann", "bob")] == [1, 1]


def test_two_beats_do_a_periodic_task_once_in_its_cool_down(
    jobs: Any, start_worker: Any, effects: Effects, redis_url: str, tmp_path: Path
) -> None:
    """Each sends it by itself, under an id of its own; its key has no argument."""
    start_worker("tests.apps.stepped:app")
    beats = []
    try:
        for number in range(2):
            schedule = str(tmp_path / f"schedule-{number}")
            beat = [sys.executable, "-m", "celery", "-A", "tests.apps.stepped:app", "beat"]
            beats.append(spawn([*beat, "-s", schedule], tmp_path / f"beat-{number}.log"))
        with redis.Redis.from_url(redis_url) as client:
            runs = "celery-task-meta-*"
            wait_until(lambda: len(client.keys(runs)) >= 6, DEADLINE_S, "six runs")
    finally:
        for beat_process in beats:
            end_group(beat_process)

    assert effects.count("stepped.nightly") == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_notification_is_sent_once_under_eight_deliveries_and_never_when_it_shows_as_sent(
    jobs: Any, start_worker: Any, effects: Effects, pool: str
) -> None:
    """S-I9: its state is looked at under the claim, and outlives the record of the key."""
    start_worker("tests.apps.stepped:app", pool=pool, concurrency=8)

    sent = [jobs.notify_once.delay("n", 8) for _ in range(8)]

    done = "stepped.notifies_once:n done"
    assert {r.get(timeout=2 * DEADLINE_S) for r in sent} == {done}
    assert store_of(jobs.app).forget("stepped.notifies_once:n1:n")
    assert jobs.notify_once.delay("n", 1).get(timeout=DEADLINE_S) is None
    assert effects.count("stepped.notifies_once:n") == 1


def test_work_that_the_system_shows_as_done_is_skipped(
    jobs: Any, worker: Any, effects: Effects
) -> None:
    """S-I9: a status elsewhere says that it was sent."""
    assert jobs.notify.delay("n", 1).get(timeout=DEADLINE_S) == "sent:n done"
    assert jobs.notify.delay("n", 2).get(timeout=DEADLINE_S) is None
    assert effects.count("sent:n") == 1


def test_misuse_is_an_error_that_says_what_to_do(jobs: Any, effects: Effects, plan: Any) -> None:
    task = jobs.order

    def twice(self: Any) -> None:
        self.step("a", jobs.other, 1)
        self.step("a", jobs.other, 1)

    async def later() -> None: ...

    with pytest.raises(StepMisused, match="used twice"):
        twice(task)
    with pytest.raises(StepMisused, match="is async"):
        task.step("b", later)
    with pytest.raises(StepMisused, match="characters"):
        task.step("", jobs.other, 1)
    with pytest.raises(StepMisused, match="function to run"):
        task.step("c", "not a function")


def test_a_function_may_take_arguments_called_name_and_function(jobs: Any) -> None:
    def entered(name: str, function: str) -> str:
        return f"{name}, {function}"

    assert jobs.order.step("a", entered, name="Ann", function="clerk") == "Ann, clerk"
