"""Field reports by number that no other file of this folder quotes: C15, C40, C41, C65 (a to c)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from celery_idem.core.record import State
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Reason
from tests.deadletters.looking import queues_are_empty
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage

APP = "tests.apps.pills"
#: Of tests that restart workers several times, on a machine that is five times slower.
DEADLINE_S = 300

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory, APP) as stage:
        yield stage


def poison(stage: Stage) -> list[tuple[str, Reason]]:
    return [(it.key, it.reason) for it in letters_of(stage.tasks.app).walk(Filter())]


# --- C15


def test_what_is_popped_and_not_recorded_is_lost_on_kombus_own_transport(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """C15, said honestly: no code of ours runs between the pop and the record. If this fails, a
    promise has become larger: docs/what-can-be-lost.md says that the message is gone."""
    with open_stage(tmp_path_factory, APP) as stage:
        dies = stage.start_worker(pool="solo", env={"TEST_DIES_AT": "record"})
        stage.tasks.good.delay("gone")
        assert dies.wait_exit(DEADLINE_S) == -9
        stage.start_worker(pool="solo")

        assert stage.tasks.good.delay("after").get(timeout=DEADLINE_S) == "after"

        wait_until(lambda: queues_are_empty(stage), DEADLINE_S, "the ack of the other")
        assert stage.effects.count("gone") == 0
        assert letters_of(stage.tasks.app).count(Filter()) == 0


def test_what_is_fetched_and_not_received_is_not_lost_on_streams(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """C15: the server hands it over and writes down to whom in one step."""
    conf = json.dumps({"broker_transport_options": {"lease_s": 3}})
    with open_stage(tmp_path_factory, APP, TEST_SCHEME="redis-streams", TEST_CONF=conf) as stage:
        dies = stage.start_worker(pool="solo", env={"TEST_DIES_AT": "streams-record"})
        stage.tasks.good.delay("kept")
        assert dies.wait_exit(DEADLINE_S) == -9
        assert stage.effects.count("kept") == 0

        stage.start_worker(pool="solo")

        stage.effects.wait_count("kept", 1, DEADLINE_S)


# --- C40: which id is counted


def test_crashes_are_counted_by_the_key_when_a_parent_publishes_the_work_again(
    stage: Stage,
) -> None:
    """C40: three messages with ids of their own, one key: three starts in all, not nine."""
    stage.tasks.sends.delay("again", 3)
    stage.start_worker()
    stage.effects.wait_count("sent:again", 1, DEADLINE_S)

    wait_until(lambda: len(poison(stage)) == 3, DEADLINE_S, lambda: f"{poison(stage)}")

    assert set(poison(stage)) == {("letters.pill:pill:again", Reason.POISON)}
    assert stage.effects.count("start:again") == 3
    ids = {it.task_id for it in letters_of(stage.tasks.app).walk(Filter())}
    assert len(ids) == 3


def test_crashes_are_counted_by_the_key_through_replace_and_chord(stage: Stage) -> None:
    """C40: two parents are replaced by chords, whose pill has another id each time."""
    for number in range(2):
        stage.tasks.fans_out.delay("fan", number)
    stage.start_worker(concurrency=1)

    wait_until(lambda: len(poison(stage)) == 2, DEADLINE_S, lambda: f"{poison(stage)}")
    for number in range(2):
        stage.effects.wait_count(f"failed:{number}", 1, DEADLINE_S)

    assert set(poison(stage)) == {("letters.pill:pill:fan", Reason.POISON)}
    assert stage.effects.count("start:fan") == 3
    assert [stage.effects.count(f"body:{n}") for n in range(2)] == [0, 0]
    assert [stage.effects.count(f"failed:{n}") for n in range(2)] == [1, 1]


@pytest.mark.slow
def test_without_a_key_the_task_id_is_counted_over_workers_and_restarts(stage: Stage) -> None:
    """C40, the fallback; and crashes count as long as the record is kept, wherever they were."""
    sent = stage.tasks.keyless.delay("spread")
    for crashes in (1, 2, 3):
        worker = stage.start_worker(concurrency=1, wait=False)
        stage.effects.wait_count("start:spread", crashes, DEADLINE_S)
        assert worker.wait_exit(DEADLINE_S) == -9
    last = stage.start_worker(concurrency=1)

    wait_until(lambda: poison(stage), DEADLINE_S, "a letter")

    [letter] = letters_of(stage.tasks.app).walk(Filter())
    assert (letter.task_id, letter.reason, letter.crashes) == (sent.id, Reason.POISON, 3)
    assert letter.worker == last.hostname
    assert stage.effects.count("start:spread") == 3


# --- C41: who is blamed


@pytest.mark.slow
def test_what_only_waited_in_the_prefetch_of_a_killed_worker_is_not_blamed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """C41, with processes: the pill kills the whole worker while others wait in its prefetch. On
    the streams transport: on kombu's own, such a kill may lose what is being fetched (C15)."""
    conf = json.dumps({"broker_transport_options": {"lease_s": 3}})
    with open_stage(tmp_path_factory, APP, TEST_SCHEME="redis-streams", TEST_CONF=conf) as stage:
        stage.tasks.tree.delay("first")
        for number in range(7):
            stage.tasks.good.delay(f"beside-{number}")
        prefetch = ["--prefetch-multiplier=8"]
        worker = stage.start_worker(concurrency=1, wait=False, extra=prefetch)

        def over() -> bool:
            if worker.returncode is not None:
                worker.close()
                worker.start()
            done = all(stage.effects.count(f"beside-{n}") for n in range(7))
            return bool(poison(stage)) and done

        wait_until(over, DEADLINE_S, lambda: f"the end; seen {stage.effects.keys()}")

        assert poison(stage) == [("pills.tree:tree:first", Reason.POISON)]
        assert stage.effects.count("start:first") == 3
        assert [stage.effects.count(f"beside-{n}") for n in range(7)] == [1] * 7
        records = [stage.record(f"letters.good:good:beside-{n}") for n in range(7)]
        assert [it.crashes for it in records if it] == [0] * 7


# --- C65


@pytest.mark.slow
def test_a_task_that_is_revoked_between_two_attempts_is_not_tried_again(stage: Stage) -> None:
    """C65 (c): and its key is free for others."""
    first = stage.start_worker()
    sent = stage.tasks.later.delay("between", 5)
    wait_until(lambda: sent.state == "RETRY", DEADLINE_S, "the first attempt")
    first.term()
    first.wait_exit()
    sent.revoke()
    stage.start_worker()

    _is_revoked(stage, sent)

    assert stage.effects.count("start:between") == 1
    assert stage.effects.count("between") == 0
    _is_free(stage, "between")
    again = stage.tasks.later.delay("between", 5)
    assert again.get(timeout=DEADLINE_S) == "between"


def test_the_key_of_a_retry_that_expires_is_free(stage: Stage) -> None:
    """It would wait for its retry for two leases more than the retry's delay."""
    stage.start_worker()

    sent = stage.tasks.later.apply_async(("expiring", 2), expires=1)

    _is_revoked(stage, sent)
    assert stage.effects.count("start:expiring") == 1
    _is_free(stage, "expiring")


def test_the_key_of_a_revoked_task_is_free(stage: Stage) -> None:
    """C65 (a, b): the task's id was revoked, not its key."""
    sent = stage.tasks.good.delay("free")
    sent.revoke()
    stage.start_worker()
    _is_revoked(stage, sent)

    assert stage.tasks.good.delay("free").get(timeout=DEADLINE_S) == "free"

    assert stage.effects.count("free") == 1
    record = stage.record("letters.good:good:free")
    assert record is not None
    assert record.state is State.DONE


def _is_free(stage: Stage, name: str) -> None:
    """Not only held until some time: a record that waits says so until somebody claims it."""

    def free() -> bool:
        record = stage.record(f"pills.later:later:{name}")
        return record is not None and record.state is State.FREE

    wait_until(free, 30, "a free key")


def _is_revoked(stage: Stage, result: Any) -> None:
    state = stage.tasks.app.AsyncResult
    wait_until(lambda: state(result.id).state == "REVOKED", DEADLINE_S, "REVOKED")
