"""The result backend forgets a big result before the record that points to it.

A result above `max_result_bytes` (64 KiB) is kept in the result backend, and the record holds a
reference. The backend deletes it after `result_expires` (a day by default). When that is shorter
than the retention, a late duplicate finds the work done and its result gone: it fails with
`ResultUnavailable`.

Only tasks that may return something big are named: what they return can't be seen to be small.

**Mend it:** keep results as long as records, or raise `max_result_bytes`, or return something
small.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from celery.backends.base import DisabledBackend

from celery_idem.core.errors import IdemError
from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project
from celery_idem.doctor.source.returns import may_return_much
from celery_idem.options import terms_of


def look(project: Project) -> Iterator[Finding]:
    expires_s = _seconds(project.app.conf.result_expires)
    if expires_s is None or isinstance(project.app.backend, DisabledBackend):
        return
    for facts in project.idempotent_tasks:
        try:
            retention_s = (
                terms_of(facts.task, project.settings, project.redelivery_s).retention_ms / 1000
            )
        except IdemError:
            continue  # a finding of its own
        source = project.reader.source_of_task(facts.task)
        if expires_s >= retention_s or (source and not may_return_much(source)):
            continue
        yield Finding(
            f"a result above {project.settings.max_result_bytes} bytes is gone before its record",
            arithmetic=f"result_expires {expires_s:g} s < retention {retention_s:g} s",
            remedy=f"app.conf.result_expires = {retention_s:g}",
            task=facts.name,
            setting="result_expires",
            value=f"{expires_s:g}",
            place=facts.place,
        )


def _seconds(given: Any) -> float | None:
    if isinstance(given, timedelta):
        return given.total_seconds()
    return float(given) if given else None  # 0 and None: never


CHECK = Check("IDEM043", "results expire before their records", Severity.INFO, look)
