"""SIGKILL of a tree, of a parent, of a child: nothing lost, nothing done twice (S-V2, S-I5)."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from celery_idem.core.record import State
from tests.faults.conftest import APP, DEADLINE_S, holder_of, record_of
from tests.support.effects import Effects
from tests.support.processes import signal_group
from tests.support.waiting import wait_until


def seconds_between(effects: Effects, name: str, since: float) -> float:
    """From the kill to the second start; a figure for the report, no pass mark."""
    return round(float(effects.lines(f"start:{name}")[1]["monotonic"]) - since, 2)


def test_the_job_of_a_killed_worker_is_done_once_by_another(
    load: Any, two_workers: Any, effects: Effects, gate: Any, record_property: Any
) -> None:
    tasks = load()
    workers = two_workers()
    result = tasks.work.delay("tree", str(gate()))
    effects.wait_count("start:tree", 1)
    victim, other = holder_of(workers, effects, "tree")

    killed = time.monotonic()
    victim.kill_tree()
    effects.wait_count("start:tree", 2, DEADLINE_S)
    gate(2).touch()

    assert result.get(timeout=DEADLINE_S).startswith("tree by")
    assert effects.count("tree") == 1
    assert effects.lines("tree")[0]["pid"] in other.children()
    record = record_of(tasks, "faulty.work:work:tree")
    assert (record.state, record.runs, record.crashes) == (State.DONE, 2, 1)
    record_property("restarted_after_s", seconds_between(effects, "tree", killed))


def test_an_orphan_ends_with_its_parent_and_its_job_is_done_once(
    load: Any, two_workers: Any, effects: Effects, gate: Any, record_property: Any
) -> None:
    """C61: only the parent is killed, while its child is at work."""
    tasks = load()
    workers = two_workers()
    result = tasks.work.delay("orphan", str(gate()))
    effects.wait_count("start:orphan", 1)
    victim, _ = holder_of(workers, effects, "orphan")

    killed = time.monotonic()
    victim.kill_parent()
    wait_until(lambda: not victim.members(), DEADLINE_S, "the end of the orphan")
    record_property("orphan_ended_after_s", round(time.monotonic() - killed, 2))
    effects.wait_count("start:orphan", 2, DEADLINE_S)
    gate(1).touch()
    gate(2).touch()

    assert result.get(timeout=DEADLINE_S).startswith("orphan by")
    assert effects.count("orphan") == 1
    record_property("restarted_after_s", seconds_between(effects, "orphan", killed))


def test_a_killed_childs_job_starts_again_without_waiting_for_the_lease(
    load: Any, start_worker: Any, effects: Effects, gate: Any, record_property: Any
) -> None:
    """C16: the parent frees the claim. The lease here is far longer than any deadline."""
    tasks = load(idem={"lease_s": 600})
    worker = start_worker(APP)
    result = tasks.work.delay("child", str(gate()))
    effects.wait_count("start:child", 1)

    killed = time.monotonic()
    worker.kill_child(effects.lines("start:child")[0]["pid"])
    effects.wait_count("start:child", 2, DEADLINE_S)
    gate(2).touch()

    assert result.get(timeout=DEADLINE_S).startswith("child by")
    assert effects.count("child") == 1
    record = record_of(tasks, "faulty.work:work:child")
    assert (record.runs, record.crashes) == (2, 1)
    record_property("restarted_after_s", seconds_between(effects, "child", killed))


def test_other_children_go_on_when_one_is_killed(
    load: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    tasks = load(idem={"lease_s": 600})
    worker = start_worker(APP, concurrency=3)
    results = [tasks.work.delay(name, str(gate())) for name in "xyz"]
    for name in "xyz":
        effects.wait_count(f"start:{name}", 1)

    worker.kill_child(effects.lines("start:y")[0]["pid"])
    effects.wait_count("start:y", 2, DEADLINE_S)
    gate(1).touch()
    gate(2).touch()

    assert [r.get(timeout=DEADLINE_S)[0] for r in results] == ["x", "y", "z"]
    assert [effects.count(f"start:{name}") for name in "xyz"] == [1, 2, 1]
    assert [record_of(tasks, f"faulty.work:work:{name}").crashes for name in "xyz"] == [0, 1, 0]


def test_the_fleet_is_killed_again_and_again_and_no_job_is_lost_or_repeated_but_by_a_kill_in_it(
    load: Any, two_workers: Any, effects: Effects
) -> None:
    """Short jobs under kills. One may hit the millisecond between an effect and its record, and
    that job's effect is repeated: a plain body has no more (docs: what can be lost)."""
    tasks = load(idem={"lease_s": 1, "max_crashes": 50})
    workers = two_workers(concurrency=2)
    names = [f"job{n}" for n in range(60)]
    results = [tasks.work.apply_async((name,)) for name in names]

    for step in range(1, 5):
        effects.wait_for(lambda it, n=step * 8: len(it.keys()) >= n, DEADLINE_S)
        workers[step % 2].kill_child()

    assert len([r.get(timeout=DEADLINE_S) for r in results]) == 60
    crashes = {name: record_of(tasks, f"faulty.work:work:{name}").crashes for name in names}
    assert all(1 <= effects.count(name) <= 1 + crashes[name] for name in names), crashes
    assert sum(crashes.values()) <= 4, "a crash for each kill"


def test_children_that_are_replaced_after_every_task_lose_nothing_and_are_no_crashes(
    load: Any, start_worker: Any, effects: Effects
) -> None:
    tasks = load()
    start_worker(APP, concurrency=2, extra=["--max-tasks-per-child", "1"])
    names = [f"n{number}" for number in range(12)]

    results = [tasks.work.delay(name) for name in names]

    for result in results:
        result.get(timeout=DEADLINE_S)
    assert [effects.count(name) for name in names] == [1] * 12
    records = [record_of(tasks, f"faulty.work:work:{name}") for name in names]
    assert [(record.runs, record.crashes) for record in records] == [(1, 0)] * 12


def test_a_worker_that_is_asked_to_stop_lets_the_job_end_under_its_lease(
    load: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    """A warm shutdown over several leases, while another worker stands by."""
    tasks = load(idem={"lease_s": 1})
    worker = start_worker(APP)
    result = tasks.work.delay("warm", str(gate()))
    effects.wait_count("start:warm", 1)
    start_worker(APP)
    first = record_of(tasks, "faulty.work:work:warm").lease_until_ms

    worker.term()
    worker.wait_log("Warm shutdown")
    wait_until(
        lambda: record_of(tasks, "faulty.work:work:warm").lease_until_ms > first + 2500,
        DEADLINE_S,
        "renewals while the worker stops",
    )
    gate(1).touch()

    assert result.get(timeout=DEADLINE_S).startswith("warm by")
    assert worker.wait_exit() == 0
    assert effects.count("start:warm") == 1


def end_in_a_hurry_and_begin_again(
    worker: Any, start_worker: Any, effects: Effects, gate: Any, job: str
) -> None:
    """SIGQUIT while the job runs; the next worker begins it once more, and may end it."""
    worker.quit()
    worker.wait_exit()
    start_worker(APP)
    effects.wait_count(f"start:{job}", 2, DEADLINE_S)
    gate(2).touch()


def test_a_worker_that_is_stopped_in_a_hurry_gives_its_key_back(
    load: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    """SIGQUIT is no crash: the key is free at once, and nobody is blamed."""
    tasks = load(idem={"lease_s": 600})
    worker = start_worker(APP)
    result = tasks.work.delay("cold", str(gate()))
    effects.wait_count("start:cold", 1)

    end_in_a_hurry_and_begin_again(worker, start_worker, effects, gate, "cold")

    assert result.get(timeout=DEADLINE_S).startswith("cold by")
    assert effects.count("cold") == 1
    record = record_of(tasks, "faulty.work:work:cold")
    assert (record.releases, record.failures, record.crashes) == (1, 0, 0)


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_green_thread_that_ends_with_its_worker_has_not_succeeded(
    load: Any, start_worker: Any, effects: Effects, gate: Any, pool: str
) -> None:
    """Celery's pools report it as a success, and it would be acked: lost."""
    tasks = load()
    worker = start_worker(APP, pool=pool)
    result = tasks.work.delay("green", str(gate()))
    effects.wait_count("start:green", 1)

    end_in_a_hurry_and_begin_again(worker, start_worker, effects, gate, "green")

    assert result.get(timeout=DEADLINE_S).startswith("green by")
    assert effects.count("green") == 1


def test_a_solo_worker_that_is_stopped_in_a_hurry_ends_its_job_first(
    load: Any, start_worker: Any, effects: Effects, gate: Any
) -> None:
    """Celery's handler runs in the body there, and its error would be the job's failure."""
    tasks = load()
    worker = start_worker(APP, pool="solo")
    result = tasks.work.delay("solo", str(gate()))
    effects.wait_count("start:solo", 1)

    worker.quit()
    worker.wait_log("Cold shutdown")
    gate(1).touch()
    worker.wait_exit()

    assert result.get(timeout=DEADLINE_S).startswith("solo by")
    assert effects.count("start:solo") == 1


@pytest.mark.parametrize("scheme", ["redis", "redis-streams"])
def test_a_signal_to_the_whole_group_is_no_crash_of_its_jobs(
    load: Any, start_worker: Any, effects: Effects, gate: Any, redis_server: Any, scheme: str
) -> None:
    """systemd sends SIGTERM to parent and children at once; three deploys make nothing poison."""
    broker = redis_server.url().replace("redis", scheme, 1)
    tasks = load(
        idem={"lease_s": 600, "max_crashes": 1}, TEST_BROKER=broker, TEST_BACKEND=redis_server.url()
    )
    worker = start_worker(APP)
    result = tasks.work.delay("deploy", str(gate()))
    effects.wait_count("start:deploy", 1)

    signal_group(worker.pid, signal.SIGTERM)
    worker.wait_exit()
    worker.start().wait_ready()
    effects.wait_count("start:deploy", 2, DEADLINE_S)
    gate(2).touch()

    assert result.get(timeout=DEADLINE_S).startswith("deploy by")
    assert effects.count("deploy") == 1
    record = record_of(tasks, "faulty.work:work:deploy")
    assert (record.runs, record.releases, record.crashes) == (2, 1, 0)


@pytest.mark.rabbitmq
def test_a_killed_childs_job_is_done_once_on_rabbitmq(
    load: Any, start_worker: Any, effects: Effects, rabbitmq: Any, redis_server: Any
) -> None:
    """C16."""
    tasks = load(TEST_BROKER=rabbitmq.url, TEST_BACKEND=redis_server.url())
    start_worker(APP)

    assert tasks.pill.delay("p", 1).get(timeout=DEADLINE_S) == "p"
    assert effects.count("start:p") == 2
    assert effects.count("p") == 1


@pytest.mark.parametrize("kind", ["skips", "raises"])
def test_the_message_of_a_dead_holder_is_no_duplicate_of_itself(
    load: Any, two_workers: Any, effects: Effects, gate: Any, kind: str
) -> None:
    """Its own claim is still leased when it comes back: ``on_conflict`` is for others."""
    tasks = load(idem={"lease_s": 1})
    workers = two_workers()
    result = getattr(tasks, kind).delay(kind, str(gate()))
    effects.wait_count(f"start:{kind}", 1)
    victim, _ = holder_of(workers, effects, kind)

    victim.kill_tree()
    effects.wait_count(f"start:{kind}", 2, DEADLINE_S)
    gate(2).touch()

    assert result.get(timeout=DEADLINE_S) == kind
    assert effects.count(kind) == 1
