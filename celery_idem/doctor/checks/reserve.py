"""Lanes reserve as many processes as a worker has.

`reserve` keeps processes of every worker free for a lane and those above it. With as many
reserved as there are (`worker_concurrency`), the lanes below would get none; the worker leaves
them one, and says so when it starts. That is less than what somebody counted on, on one side or
the other.

**Mend it:** reserve less, or give the worker more processes.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project
from celery_idem.lanes.routing import lanes_of


def look(project: Project) -> Iterator[Finding]:
    processes = project.app.conf.worker_concurrency
    if not project.settings.lanes or not processes:
        return
    lanes = lanes_of(project.settings)
    reserved = sum(lane.reserve for lane in lanes[:-1])
    if reserved < int(processes):
        return
    sums = " + ".join(f"{lane.name} {lane.reserve}" for lane in lanes[:-1] if lane.reserve)
    yield Finding(
        f"{reserved} processes are reserved, and a worker has {processes}",
        arithmetic=f"{sums} = {reserved} >= worker_concurrency {processes}",
        remedy=f"app.conf.worker_concurrency = {reserved + 1}",
        setting="worker_concurrency",
        value=str(processes),
    )


CHECK = Check("IDEM034", "all processes are reserved", Severity.WARNING, look)
