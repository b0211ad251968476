"""What keeps a key and what does not: copies, crashes, time limits, sweeps (C11, C12, C14, C56)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from celery_idem.core.record import State
from tests.faults.conftest import APP, DEADLINE_S, holder_of, record_of
from tests.support.clock import ClockSkew
from tests.support.effects import Effects
from tests.support.waiting import wait_until

#: kombu gives back after 3 s what is not acked; with the keeper off, a running task's message too
VT3 = json.dumps(
    {"visibility_timeout": 3, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
)


@pytest.mark.celery_min(5, 7)  # kombu looks every 100 s before, whatever is set
def test_copies_of_a_running_job_and_a_second_publish_meet_its_claim(
    load: Any, two_workers: Any, effects: Effects, gate: Any
) -> None:
    """C02, C11, C14: without the keeper of messages, the claim alone must hold."""
    tasks = load(
        idem={"visibility_keeper": False},
        TEST_TRANSPORT=VT3,
        TEST_CONF='{"worker_deduplicate_successful_tasks": true}',
    )
    workers = two_workers()
    result = tasks.work.delay("long", str(gate()))
    effects.wait_count("start:long", 1)
    second = tasks.work.delay("long", str(gate()))

    def copies() -> int:
        return sum(w.log_text().count(f"faulty.work[{result.id}] received") for w in workers)

    wait_until(lambda: copies() >= 3, DEADLINE_S, "two copies made by kombu's timeout")
    gate(1).touch()

    value = result.get(timeout=DEADLINE_S)
    assert second.get(timeout=DEADLINE_S) == value
    assert effects.count("start:long") == 1
    assert record_of(tasks, "faulty.work:work:long").crashes == 0


def test_the_loser_of_a_conflict_comes_back_seldom(
    load: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    """C47: a lease apart, not thousands of times."""
    tasks = load(idem={"lease_s": 1})
    worker = start_worker(APP, concurrency=2)
    holder = tasks.work.delay("held", str(gate()))
    effects.wait_count("start:held", 1)
    loser = tasks.work.delay("held", str(gate()))
    since = record_of(tasks, "faulty.work:work:held").lease_until_ms

    def held_s() -> float:
        return (record_of(tasks, "faulty.work:work:held").lease_until_ms - since) / 1000

    wait_until(lambda: held_s() > 5, DEADLINE_S, "five leases")
    received = worker.log_text().count(f"faulty.work[{loser.id}] received")
    assert received <= 3 + held_s() / 0.6, "each pause is at least what is left of the lease"
    gate(1).touch()

    assert loser.get(timeout=DEADLINE_S) == holder.get(timeout=DEADLINE_S)
    assert effects.count("start:held") == 1


def test_a_crash_frees_its_own_key_and_no_other(
    load: Any, two_workers: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    """C56: the key runs again; leases of the living stay as they are, whoever starts."""
    tasks = load()
    workers = two_workers()
    tasks.work.delay("one", str(gate()))
    effects.wait_count("start:one", 1)
    tasks.work.delay("two", str(gate()))
    effects.wait_count("start:two", 1)
    victim, _ = holder_of(workers, effects, "one")
    living = record_of(tasks, "faulty.work:work:two")

    victim.kill_tree()
    start_worker(APP)
    again = tasks.work.delay("one", str(gate()))
    effects.wait_count("start:one", 2, DEADLINE_S)
    gate(2).touch()
    gate(1).touch()

    assert again.get(timeout=DEADLINE_S).startswith("one by")
    assert effects.count("one") == 1
    effects.wait_count("two", 1)
    assert effects.count("start:two") == 1
    after = record_of(tasks, "faulty.work:work:two")
    assert (after.fence, after.owner, after.crashes) == (living.fence, living.owner, 0)


def test_the_hard_time_limit_frees_the_key_at_once(
    load: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    """C57: the lease here is longer than any deadline."""
    tasks = load(idem={"lease_s": 600})
    worker = start_worker(APP)
    stuck = tasks.hangs.delay("h", str(gate()))
    effects.wait_count("start:h", 1)
    worker.wait_log("Hard time limit")
    gate(2).touch()

    again = tasks.hangs.delay("h", str(gate()))

    assert again.get(timeout=DEADLINE_S) == "h"
    assert effects.count("h") == 1
    assert stuck.state == "FAILURE"
    assert record_of(tasks, "faulty.hangs:hangs:h").state is State.DONE


def test_the_hard_time_limit_of_a_green_thread_frees_the_key_at_once(
    load: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    """C57: such a job has no process whose end could be waited for."""
    tasks = load(idem={"lease_s": 600})
    worker = start_worker(APP, pool="gevent", concurrency=4)
    stuck = tasks.hangs.delay("h", str(gate()))
    effects.wait_count("start:h", 1)
    worker.wait_log("Hard time limit")
    gate(2).touch()

    again = tasks.hangs.delay("h", str(gate()))

    assert again.get(timeout=DEADLINE_S) == "h"
    assert stuck.state == "FAILURE"
    assert "lease keeper failed" not in worker.log_text()


def test_the_soft_time_limit_is_a_failure_and_frees_the_key(
    load: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    tasks = load(idem={"lease_s": 600})
    start_worker(APP)

    with pytest.raises(SoftTimeLimitExceeded):
        tasks.soft.delay("soft", str(gate())).get(timeout=DEADLINE_S)
    gate(2).touch()

    assert tasks.soft.delay("soft", str(gate())).get(timeout=DEADLINE_S) == "soft"
    record = record_of(tasks, "faulty.soft:soft")
    assert (record.failures, record.crashes) == (1, 0)


def test_a_task_that_is_terminated_by_its_user_frees_its_key_at_once(
    load: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    tasks = load(idem={"lease_s": 600})
    start_worker(APP)
    stuck = tasks.work.delay("t", str(gate()))
    effects.wait_count("start:t", 1)

    stuck.revoke(terminate=True, signal="SIGKILL")
    wait_until(
        lambda: record_of(tasks, "faulty.work:work:t").state is State.FREE,
        DEADLINE_S,
        "a free key",
    )
    gate(2).touch()

    assert tasks.work.delay("t", str(gate())).get(timeout=DEADLINE_S).startswith("t by")
    assert effects.count("t") == 1


@pytest.mark.parametrize(("dies_at", "inside"), [(20, False), (49, True)])
def test_a_batch_that_dies_half_way_sends_no_mail_twice(
    load: Any, start_worker: Any, effects: Effects, dies_at: int, inside: bool
) -> None:
    """C12, by claims: a key for each mail. Inside: with the mail's key claimed and not yet sent."""
    tasks = load(idem={"lease_s": 1})
    worker = start_worker(APP)
    result = tasks.mails.delay("b", 50, dies_at, inside)
    worker.wait_exit()

    worker.start().wait_ready()

    assert result.get(timeout=DEADLINE_S) == 50
    assert [effects.count(f"mail:b:{n}") for n in range(50)] == [1] * 50


@pytest.mark.platform("linux")
def test_no_live_lease_is_taken_whatever_the_workers_clocks_say(
    load: Any, start_worker: Any, effects: Effects, gate: Any, tmp_path: Any
) -> None:
    """C62, C04: twenty keys over several leases, two workers whose clocks are ten seconds apart."""
    tasks = load(idem={"lease_s": 1.5})
    for skew_s in (-5.0, 5.0):
        clock = ClockSkew(tmp_path / f"clock{skew_s}", skew_s)
        start_worker(APP, pool="threads", concurrency=10, env=clock.env)
    names = [f"k{n}" for n in range(20)]
    results = [tasks.work.delay(name, str(gate())) for name in names]
    for name in names:
        effects.wait_count(f"start:{name}", 1, DEADLINE_S)
    keys = [f"faulty.work:work:{name}" for name in names]
    until = {key: record_of(tasks, key).lease_until_ms for key in keys}

    wait_until(
        lambda: all(record_of(tasks, key).lease_until_ms > until[key] + 6000 for key in keys),
        DEADLINE_S,
        "four leases of every key",
    )
    gate(1).touch()

    for result in results:
        result.get(timeout=DEADLINE_S)
    assert [effects.count(f"start:{name}") for name in names] == [1] * 20
    assert sum(record_of(tasks, key).crashes for key in keys) == 0
