"""How long messages of a project may sit unacked in a worker before they are due."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_idem.doctor.finding import Place
from celery_idem.doctor.project import Project, TaskFacts
from celery_idem.doctor.source import delays
from celery_idem.doctor.source.module import Module
from celery_idem.options import retry_policies


@dataclass(frozen=True, slots=True)
class LongDelay:
    """A delay, and where it comes from."""

    what: str
    seconds: float
    task: str
    place: Place | None


def longest_delays(project: Project, longer_than_s: float) -> Iterator[LongDelay]:
    """Delays of retries and calls that are longer than this: from the tasks' options, and from
    numbers in the project's source."""
    for facts in project.tasks:
        yield from _of_task(project, facts, longer_than_s)
    for module in project.files:
        for call in delays.calls_of(module):
            if (call.seconds or 0.0) > longer_than_s:
                yield LongDelay("a countdown", call.seconds or 0.0, "", _place(module, call))


def _of_task(project: Project, facts: TaskFacts, longer_than_s: float) -> Iterator[LongDelay]:
    source = project.reader.source_of_task(facts.task)
    by_hand = facts.task.max_retries != 0  # else none of those that the body asks for is sent
    retries = delays.retries_of(source) if source and by_hand else []
    pause_s = _pause_s(facts.task, by_hand=any(it.seconds is None for it in retries))
    if pause_s > longer_than_s:
        yield LongDelay("a retry delay", pause_s, facts.name, facts.place)
    for retry in retries:
        if source and (retry.seconds or 0.0) > longer_than_s:
            place = _place(source.module, retry)
            yield LongDelay("a retry delay", retry.seconds or 0.0, facts.name, place)


def _pause_s(task: Any, *, by_hand: bool) -> float:
    """The longest pause that the task's options make; ``by_hand``: its body says ``self.retry()``,
    which knows no backoff."""
    _, automatic = retry_policies(task, 0)
    retried = getattr(task, "autoretry_for", ()) and automatic.max_retries != 0
    pauses = [automatic.pause_s] if retried else []
    if by_hand:
        pauses.append(float(task.default_retry_delay or 0))
    return max(pauses, default=0.0)


def _place(module: Module, delay: delays.Delay) -> Place:
    return Place(str(module.path), delay.call.lineno, delay.call.end_lineno or delay.call.lineno)
