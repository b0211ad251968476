"""One worker, real Redis: what a delivery gets (S-I1, S-I2, S-I4, DESIGN §2.2, §3)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from celery_idem import (
    AlreadyProcessed,
    IdempotentTask,
    InProgress,
    KeyInvalid,
    KeyReused,
    Poisoned,
)
from celery_idem.binding import store_of
from celery_idem.core.record import State
from tests.support.effects import Effects
from tests.support.waiting import wait_until

DEADLINE_S = 60


@pytest.fixture
def tasks(redis_url: str, effects: Effects, load_app: Any) -> ModuleType:
    return load_app("tests.apps.idem", TEST_BROKER=redis_url)


@pytest.fixture
def worker(tasks: ModuleType, start_worker: Any) -> Any:
    return start_worker("tests.apps.idem:app", concurrency=2)


def test_a_job_sent_twice_is_done_once_and_both_callers_get_the_result(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    """C10."""
    first = tasks.pay.delay("42")
    second = tasks.pay.delay(order="42")

    assert first.get(timeout=DEADLINE_S) == "paid"
    assert second.get(timeout=DEADLINE_S) == "paid"
    assert effects.count("42") == 1


def test_the_same_task_id_sent_twice_is_done_once(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    """C10: ids are not unique keys for Celery; here they are."""
    results = [tasks.by_id.apply_async(("x",), task_id="same-id") for _ in range(3)]
    marker = tasks.by_id.delay("after")

    assert [r.get(timeout=DEADLINE_S) for r in results] == ["x"] * 3
    assert marker.get(timeout=DEADLINE_S) == "after"
    assert effects.count("x") == 1


def test_the_same_key_with_other_arguments_is_refused_visibly(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    """C10, second half."""
    assert tasks.pay.delay("7", result="first").get(timeout=DEADLINE_S) == "first"

    with pytest.raises(KeyReused, match="other arguments"):
        tasks.pay.delay("7", result="second").get(timeout=DEADLINE_S)
    assert effects.count("7") == 1


@pytest.mark.parametrize(
    "value", [None, 0, False, "", [], {}, [1, {"a": None}], "ü", 1.5, "x" * 1000]
)
def test_a_duplicate_gets_exactly_the_recorded_value(tasks: Any, worker: Any, value: Any) -> None:
    key = f"value-{value!r}"[:40]
    first = tasks.pay.delay(key, result=value).get(timeout=DEADLINE_S)
    again = tasks.pay.delay(key, result=value).get(timeout=DEADLINE_S)

    assert first == again == value
    assert type(first) is type(again) is type(value)


def test_a_result_larger_than_the_record_takes_is_replayed_from_the_backend(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    big = "x" * 200_000

    assert tasks.pay.delay("big", result=big).get(timeout=DEADLINE_S) == big
    assert tasks.pay.delay("big", result=big).get(timeout=DEADLINE_S) == big
    assert effects.count("big") == 1
    record = store_of(tasks.app).get("idem.pay:order:big")
    assert record is not None
    assert record.result is not None
    assert len(record.result) < 1000


def test_a_key_given_per_call_names_the_work_whatever_the_arguments_say(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    tasks.by_id.apply_async(("a",), idem_key="monday").get(timeout=DEADLINE_S)
    again = tasks.by_id.apply_async(("a",), idem_key="monday").get(timeout=DEADLINE_S)

    assert again == "a"
    assert effects.count("a") == 1


@pytest.mark.parametrize("key", ["", "   ", "x" * 256, 5, "a\nb"])
def test_a_bad_key_is_refused_before_anything_is_sent(tasks: Any, key: Any) -> None:
    with pytest.raises(KeyInvalid, match="idem_key"):
        tasks.by_id.apply_async(("a",), idem_key=key)


def test_an_empty_key_argument_fails_the_task_and_not_the_worker(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    with pytest.raises(KeyInvalid, match="order"):
        tasks.pay.delay("").get(timeout=DEADLINE_S)
    assert tasks.pay.delay("next").get(timeout=DEADLINE_S) == "paid"
    assert effects.keys() == ["start:next", "next"]


def test_a_retry_runs_under_the_same_key_until_it_succeeds(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    """C46, S-I2: the key is stable across retries."""
    assert tasks.fails.delay("r", times=2).get(timeout=DEADLINE_S) == 2
    assert effects.count("start:r") == 3
    assert effects.count("r") == 1
    record = store_of(tasks.app).get("idem.fails:fails:r")
    assert record is not None
    assert (record.state, record.runs, record.crashes) == (State.DONE, 3, 0)


def test_a_retry_with_other_arguments_keeps_the_key_of_its_work(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    """S-I2: the key is stable across retries."""
    assert tasks.moves.delay("m").get(timeout=DEADLINE_S) == "m''"
    assert tasks.moves.delay("m").get(timeout=DEADLINE_S) == "m''"

    assert [effects.count(f"stage:{n}") for n in range(3)] == [1, 1, 1]
    record = store_of(tasks.app).get("idem.moves:moves:m")
    assert record is not None
    assert record.runs == 3


def test_an_intruder_is_kept_out_while_a_retry_is_on_its_way(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    """C46: nobody runs between two attempts, and still the key is held."""
    owner = tasks.fails.delay("held", times=1, countdown=4)
    store = store_of(tasks.app)
    wait_until(
        lambda: (r := store.get("idem.fails:fails:held")) and r.state is State.WAITING,
        what="the retry to be on its way",
    )
    intruder = tasks.fails.delay("held", times=1, countdown=4)

    assert owner.get(timeout=DEADLINE_S) == 1
    assert intruder.get(timeout=DEADLINE_S) == 1
    assert effects.count("start:held") == 2
    assert effects.count("held") == 1


def test_autoretry_works_and_the_last_failure_is_final(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    assert tasks.auto.delay("ok", times=1).get(timeout=DEADLINE_S) == 1

    with pytest.raises(ValueError, match="try 2"):
        tasks.auto.delay("no", times=9).get(timeout=DEADLINE_S)
    assert effects.count("start:no") == 3


def test_a_failed_job_gives_its_key_back(tasks: Any, worker: Any, effects: Effects) -> None:
    """S-I4."""
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't be done"):
            tasks.always_fails.delay("x").get(timeout=DEADLINE_S)
    record = store_of(tasks.app).get("idem.always_fails:af:x")
    assert effects.count("start:x") == 2
    assert record is not None
    assert (record.state, record.failures, record.crashes) == (State.FREE, 2, 0)


def test_a_conflict_waits_and_adopts_the_holders_outcome(
    tasks: Any, worker: Any, effects: Effects, tmp_path: Any
) -> None:
    """C44 (wait), C47: the loser comes back a few times, not thousands."""
    gate = tmp_path / "gate"
    holder = tasks.gated.delay("w", str(gate))
    effects.wait_count("start:w", 1)
    loser = tasks.gated.delay("w", str(gate))
    worker.wait_log(rf"Task idem\.gated\[{loser.id}\] received")
    gate.touch()

    value = holder.get(timeout=DEADLINE_S)
    assert loser.get(timeout=DEADLINE_S) == value == f"w by {holder.id}"
    assert effects.count("start:w") == 1
    assert worker.log_text().count(f"idem.gated[{loser.id}] received") < 10


def test_a_conflict_may_be_skipped_and_never_looks_like_success(
    tasks: Any, worker: Any, effects: Effects, tmp_path: Any
) -> None:
    """C44 (skip)."""
    gate = tmp_path / "gate"
    holder = tasks.gated_skip.delay("s", str(gate))
    effects.wait_count("start:s", 1)
    skipped = tasks.gated_skip.delay("s", str(gate))

    with pytest.raises(TaskRevokedError, match=f"duplicate of {holder.id}"):
        skipped.get(timeout=DEADLINE_S)
    gate.touch()
    assert holder.get(timeout=DEADLINE_S) == "s"


def test_a_conflict_may_raise(tasks: Any, worker: Any, effects: Effects, tmp_path: Any) -> None:
    """C44 (fail)."""
    gate = tmp_path / "gate"
    holder = tasks.gated_raise.delay("e", str(gate))
    effects.wait_count("start:e", 1)

    with pytest.raises(InProgress, match="in progress"):
        tasks.gated_raise.delay("e", str(gate)).get(timeout=DEADLINE_S)
    gate.touch()
    assert holder.get(timeout=DEADLINE_S) == "e"


def test_a_body_that_always_asks_for_a_requeue_does_not_spin(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    """C47, second half: 758 executions in 4 s on stock Celery."""
    tasks.rejects.delay("loop", requeue=True)
    effects.wait_count("start:loop", 3)

    times = [line["monotonic"] for line in effects.lines("start:loop")]
    assert times[1] - times[0] >= 1.0
    assert times[2] - times[1] >= 2.0


def test_a_killed_child_is_recovered_at_once(tasks: Any, worker: Any, effects: Effects) -> None:
    """C16."""
    result = tasks.kills_child.delay("once", times=1)

    assert result.get(timeout=DEADLINE_S) == "once"
    assert effects.count("once") == 1
    assert effects.count("start:once") == 2
    record = store_of(tasks.app).get("idem.kills_child:pill:once")
    assert record is not None
    assert record.crashes == 1


def test_a_pill_is_started_three_times_and_then_fails(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    """C38: without end on stock Celery."""
    pill = tasks.kills_child.delay("always", times=99)

    with pytest.raises(Poisoned, match="3 times"):
        pill.get(timeout=DEADLINE_S)
    assert tasks.pay.delay("behind").get(timeout=DEADLINE_S) == "paid"
    assert effects.count("start:always") == 3


def test_a_plain_task_of_the_same_app_is_as_it_was(
    tasks: Any, worker: Any, effects: Effects
) -> None:
    for _ in range(2):
        assert tasks.plain.delay("p").get(timeout=DEADLINE_S) == "p"
    assert effects.count("p") == 2
    assert tasks.plain.acks_late is False


def test_a_duplicate_may_raise_or_be_ignored(tasks: Any, effects: Effects) -> None:
    tasks.pay.apply(("d",))

    tasks.pay.on_duplicate = "raise"
    with pytest.raises(AlreadyProcessed, match="done already"):
        tasks.pay.apply(("d",), throw=True)
    tasks.pay.on_duplicate = "ignore"
    assert tasks.pay.apply(("d",)).state == "IGNORED"
    assert effects.count("d") == 1


def test_no_task_and_key_read_like_another_task_and_key(tasks: Any) -> None:
    """Two tasks never share a result, whatever their names are."""
    from celery_idem.delivery import record_key

    def send() -> None: ...

    first = tasks.app.task(send, base=IdempotentTask, name="mail", lazy=False)
    second = tasks.app.task(send, base=IdempotentTask, name="mail:send", lazy=False)

    one = record_key(first, first._terms, "id", {"idem_key": "send:7"}, (), {})
    other = record_key(second, second._terms, "id", {"idem_key": "7"}, (), {})
    assert one == "mail:send:7"
    assert other == "mail%3Asend:7"
