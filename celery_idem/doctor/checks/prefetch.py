"""The prefetch and the lanes do not fit: the order is decided in a buffer, or not at all.

With lanes on Redis and RabbitMQ a worker takes a message only when a process is free to run it,
so `worker_prefetch_multiplier` has no effect there. Three set-ups are mistakes:

- lanes on a broker that fetches in batches of its own (SQS and others): what was prefetched runs
  in its order of arrival, and the weights divide buffers, not work;
- lanes that nothing installs, because the app has no idempotent task;
- a prefetch that somebody tuned in the belief that it still counts.

**Mend it:** as the finding says.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project

#: brokers on which lanes choose message by message
CHOOSES = ("redis", "redis-streams", "amqp")
#: Celery's default, and the one that people set for long tasks.
_NOBODY_TUNED = (4, 1)


def look(project: Project) -> Iterator[Finding]:
    if not project.settings.lanes:
        return
    multiplier = int(project.app.conf.worker_prefetch_multiplier)
    if not project.serves_lanes:
        yield Finding(
            "lanes are configured, but nothing installs them: the app has no idempotent task",
            remedy="from celery_idem.lanes.install import install_lanes; install_lanes(app)",
            setting='idem["lanes"]',
            value=", ".join(project.settings.lanes),
            severity=Severity.ERROR,
        )
    elif project.broker not in CHOOSES:
        held = f"{multiplier} messages for each process" if multiplier else "without any bound"
        yield Finding(
            f"on {project.broker} a worker prefetches, and runs in order of arrival",
            arithmetic=f"worker_prefetch_multiplier {multiplier}: {held}, whatever their lane",
            remedy="app.conf.worker_prefetch_multiplier = 1  # and a worker for each urgent lane",
            setting="worker_prefetch_multiplier",
            value=str(multiplier),
        )
    elif multiplier not in _NOBODY_TUNED:
        yield Finding(
            f"worker_prefetch_multiplier {multiplier} has no effect: with lanes a worker takes a "
            "message when a process is free",
            remedy="# remove worker_prefetch_multiplier; to hold processes back for urgent work: "
            '"critical": {"weight": 10, "reserve": 1}',
            setting="worker_prefetch_multiplier",
            value=str(multiplier),
            severity=Severity.INFO,
        )


CHECK = Check("IDEM030", "prefetch and lanes do not fit", Severity.WARNING, look)
