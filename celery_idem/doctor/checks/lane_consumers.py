"""A lane that no worker consumes, or a worker's queue that is no lane.

What is sent to a lane without consumers waits for ever, and no order helps it. A queue that is no
lane is served as one of weight 1, ranked last: mostly a mistyped name in `-Q`.

Only workers of this project count. When none answers, the check is not made.

**Mend it:** start a worker with the lane in `-Q`, or take the lane out of `idem["lanes"]`.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.paste import change
from celery_idem.doctor.project import Project
from celery_idem.lanes.routing import lanes_of


def look(project: Project) -> Iterator[Finding]:
    if not project.settings.lanes:
        return
    lanes = {lane.queue: lane.name for lane in lanes_of(project.settings)}
    workers = project.servers.fleet.ours
    consumed = {queue for worker in workers for queue in worker.queues}
    for queue, lane in lanes.items():
        if queue not in consumed:
            yield Finding(
                f"no worker consumes the lane {lane!r} ({len(workers)} answered)",
                remedy=f"celery -A {project.app.main or 'proj'} worker -Q {','.join(lanes)}",
                setting='idem["lanes"]',
                value=lane,
                severity=Severity.ERROR,
            )
    for queue in sorted(consumed - lanes.keys()):
        by = ", ".join(worker.name for worker in workers if queue in worker.queues)
        yield Finding(
            f"the queue {queue!r}, which {by} consumes, is no lane",
            remedy=change("idem", lanes={queue: 1}) + "  # or take it out of -Q",
            setting='idem["lanes"]',
            value=queue,
        )


CHECK = Check(
    "IDEM032", "a lane without workers", Severity.WARNING, look, asks_servers=True
)  # fmt: skip
