"""The lease stops being renewed before a run may be over.

`max_lease_s` says when a worker stops renewing the lease of a body, because it must be hanging. A
run that is allowed to go on for longer than that loses its key while it works, and a second
worker starts it (S-V5). Without `max_lease_s` the hard time limit counts, which fits by itself.

**Mend it:** set `max_lease_s` to the time limit or more, or leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project


def look(project: Project) -> Iterator[Finding]:
    for facts in project.idempotent_tasks:
        own = facts.task.max_lease_s
        renewed_s = project.settings.max_lease_s if own is None else own
        limit_s = facts.time_limit_s
        if renewed_s is None or limit_s is None or renewed_s >= limit_s:
            continue
        yield Finding(
            f"its lease is renewed for {renewed_s:g} s, and a run may last {limit_s:g} s",
            arithmetic=f"max_lease_s {renewed_s:g} s < time limit {limit_s:g} s",
            remedy=f"max_lease_s={limit_s:g}",
            task=facts.name,
            setting="max_lease_s",
            value=f"{renewed_s:g}",
            place=facts.place,
        )


CHECK = Check("IDEM013", "the lease ends before the run may", Severity.ERROR, look)
