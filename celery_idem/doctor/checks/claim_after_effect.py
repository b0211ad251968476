"""A claim is taken after the effect that it should guard.

`with idempotent(…)`, `SET … NX` and `cache.add` decide who may do the work. Taken after the work,
they only notice that it was done twice (S-I1).

**Mend it:** the claim first, the effect under it.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Place, Severity
from celery_idem.doctor.project import Project, TaskFacts
from celery_idem.doctor.source.claims import claims_of
from celery_idem.doctor.source.names import names_in


def look(project: Project) -> Iterator[Finding]:
    for facts in project.plain_tasks:
        source = project.reader.source_of_task(facts.task)
        if source is None:
            continue
        names = names_in(project.reader, source.module, source.function, source.owner)
        claims = claims_of(source.function, names)
        entries = [it.entry for it in project.effects_of(facts).every]
        lines = sorted(int(getattr(it, "lineno", 0)) for it in entries)
        if claims and lines and lines[-1] < claims[0].call.lineno:
            yield _finding(facts, str(source.module.path), claims[0].what, lines[0], claims[0].call)


def _finding(facts: TaskFacts, path: str, what: str, effect_line: int, call: object) -> Finding:
    line = int(getattr(call, "lineno", 1))
    return Finding(
        f"{what} in line {line} comes after the effect in line {effect_line}",
        remedy="with idempotent(key, ttl=…):  # first, and the effect in it",
        task=facts.name,
        place=Place(path, line, int(getattr(call, "end_lineno", line))),
    )


CHECK = Check("IDEM054", "a claim after the effect", Severity.ERROR, look, reads_source=True)
