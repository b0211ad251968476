"""How long messages of a project may sit unacked in a worker before they are due."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from celery_idem.doctor.finding import Place
from celery_idem.doctor.project import Project, TaskFacts
from celery_idem.doctor.source import delays
from celery_idem.doctor.source.module import Module
from celery_idem.options import window_of


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
    if facts.task.max_retries == 0:
        return
    source = project.reader.source_of_task(facts.task)
    retries = delays.retries_of(source) if source else []
    pause_s = window_of(facts.task, 0).policy.pause_s
    by_options = getattr(facts.task, "autoretry_for", ()) or any(
        it.seconds is None for it in retries
    )
    if by_options and pause_s > longer_than_s:
        yield LongDelay("a retry delay", pause_s, facts.name, facts.place)
    for retry in retries:
        if source and (retry.seconds or 0.0) > longer_than_s:
            place = _place(source.module, retry)
            yield LongDelay("a retry delay", retry.seconds or 0.0, facts.name, place)


def _place(module: Module, delay: delays.Delay) -> Place:
    return Place(str(module.path), delay.call.lineno, delay.call.end_lineno or delay.call.lineno)
