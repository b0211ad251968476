"""What a process notes of run times until a call takes it along (S-V7)."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

from celery_idem.core.histogram import bucket_of
from celery_idem.run_times import EVERY_S, MAX_WAITING, PlainTasks, RunTimes, queue_of


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_the_first_counts_are_due_at_once_and_further_ones_after_a_while():
    clock = Clock()
    times = RunTimes(clock)
    times.note("pay", "critical", 1.0)

    assert times.due() == {("pay", "critical", bucket_of(1.0)): 1}
    times.note("pay", "critical", 1.0)
    times.note("pay", "critical", 1.0)
    assert times.due() == {}
    clock.now_s += EVERY_S
    assert times.due() == {("pay", "critical", bucket_of(1.0)): 2}
    clock.now_s += EVERY_S
    assert times.due() == {}


def test_no_run_is_lost_or_counted_twice_between_threads():
    times, taken = RunTimes(lambda: 0.0), []

    def work() -> None:
        for _ in range(500):
            times.note("pay", "critical", 1.0)
            taken.append(times.due())

    crew = [threading.Thread(target=work) for _ in range(4)]
    for each in crew:
        each.start()
    for each in crew:
        each.join(60)
    times._due_at = 0.0
    taken.append(times.due())

    assert sum(runs for counts in taken for runs in counts.values()) == 2000


def test_a_forked_child_does_not_hand_over_what_its_parent_noted():
    times = RunTimes()
    times.note("pay", "critical", 1.0)

    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        times.note("mail", "low", 1.0)
        os._exit(0 if [run[0] for run in times.due()] == ["mail"] else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [run[0] for run in times.due()] == ["pay"]


def test_what_waits_is_bounded_whatever_the_names():
    times = RunTimes()
    for n in range(MAX_WAITING + 10):
        times.note(f"task-{n}", "low", 1.0)
    times.note("task-0", "low", 1.0)

    due = times.due()

    assert len(due) == MAX_WAITING
    assert due[("task-0", "low", bucket_of(1.0))] == 2


def test_a_plain_task_is_noted_between_its_signals():
    times = RunTimes()
    plain = PlainTasks(lambda task: times if task.name == "report" else None)
    report = SimpleNamespace(
        name="report", request=SimpleNamespace(delivery_info={"routing_key": "low"})
    )

    plain.on_prerun(task_id="t1")
    plain.on_postrun(task_id="t1", task=report)
    plain.on_postrun(task_id="unknown", task=report)

    [(task, lane, _)] = times.due()
    assert (task, lane) == ("report", "low")


def test_another_kind_of_task_is_not_noted_and_not_kept():
    times = RunTimes()
    plain = PlainTasks(lambda task: None)
    plain.on_prerun(task_id="t1")
    plain.on_postrun(task_id="t1", task=SimpleNamespace(name="celery.ping"))

    assert times.due() == {}
    assert plain._started == {}


def test_a_message_without_a_routing_key_has_no_queue():
    assert queue_of(SimpleNamespace(delivery_info=None)) == ""
    assert queue_of(SimpleNamespace(delivery_info={"routing_key": None})) == ""
    assert queue_of(SimpleNamespace(delivery_info={"routing_key": "critical"})) == "critical"
