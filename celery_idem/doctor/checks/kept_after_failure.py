"""A claim made by hand is kept when the job fails: its own retry is taken for a duplicate.

The wrapper that everybody writes, `if not redis.set(key, 1, nx=True, ex=86400): return`, holds
the key whatever happens next. When the body raises, the retry finds the key and does nothing
(S-I4); when the worker is killed, so does the redelivery, until the key expires (S-I5). Most
packages of this kind have the same fault.

The check names tasks that claim so, may run again (late acks, `autoretry_for`, `self.retry`), and
delete no key in an `except` or `finally`. Cool-downs and debounces (by their words, or shorter
than five minutes) are left out.

**Mend it:** `base=IdempotentTask` with a key, or `with idempotent(key, ttl=…)`: both give the key
back after a failure, and after a crash when the lease is over.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Place, Severity
from celery_idem.doctor.project import Project, TaskFacts
from celery_idem.doctor.source.claims import claims_of, gives_back, is_kept_on_purpose
from celery_idem.doctor.source.delays import retries_of
from celery_idem.doctor.source.names import names_in
from celery_idem.doctor.source.reader import TaskSource


def look(project: Project) -> Iterator[Finding]:
    for facts in project.tasks:
        source = project.reader.source_of_task(facts.task)
        if source is None or not _may_run_again(facts, source):
            continue
        names = names_in(project.reader, source.module, source.function, source.owner)
        for claim in claims_of(source.function, names):
            if not claim.by_hand or is_kept_on_purpose(claim, names):
                continue
            if gives_back(source.function, claim):
                continue
            line = claim.call.lineno
            yield Finding(
                f"the key that {claim.what} takes is kept after a failure: the retry does nothing",
                remedy="with idempotent(key, ttl=…):  # gives it back when the block raises",
                task=facts.name,
                place=Place(str(source.module.path), line, claim.call.end_lineno or line),
            )


def _may_run_again(facts: TaskFacts, source: TaskSource) -> bool:
    retries = getattr(facts.task, "autoretry_for", ()) or retries_of(source)
    return facts.acks_late or bool(retries and facts.task.max_retries != 0)


CHECK = Check("IDEM055", "a key kept after a failure", Severity.WARNING, look, reads_source=True)
