"""A delay is longer than the visibility timeout, and nothing renews it.

A message with a countdown or an ETA sits unacked in a worker until it is due. When that takes
longer than the visibility timeout, it is delivered to another worker as well, and again, and at
the due time it runs once for every copy (C01). Retries are such messages: their delay counts.

The check knows the delays of the tasks' own options, and the numbers that the project's source
writes as `countdown=`. With the visibility keeper (the default on Redis), and on
`redis-streams://`, it finds nothing.

**Mend it:** let the keeper work (`visibility_keeper: True`), shorten the delay, or set the
timeout to what the finding says.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.delays import longest_delays
from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.paste import change
from celery_idem.doctor.project import Project


def look(project: Project) -> Iterator[Finding]:
    timeout_s = project.visibility_timeout_s
    if timeout_s is None or project.kept:
        return
    for delay in longest_delays(project, timeout_s):
        yield Finding(
            f"{delay.what} of {delay.seconds:g} s is longer than the visibility timeout",
            arithmetic=f"{delay.seconds:g} s > {timeout_s:g} s: it is delivered "
            f"{int(delay.seconds // timeout_s) + 1} times before it is due",
            remedy=change("broker_transport_options", visibility_timeout=2 * delay.seconds),
            task=delay.task,
            setting='broker_transport_options["visibility_timeout"]',
            value=f"{timeout_s:g}",
            place=delay.place,
        )


CHECK = Check(
    "IDEM011",
    "a delay is longer than the visibility timeout",
    Severity.ERROR,
    look,
    reads_source=True,
)
