"""A Redis that holds messages, records or dead letters forgets them when it restarts.

Without an append-only file a crash of the server loses everything since the last snapshot, and
without snapshots everything: waiting jobs, dead letters, and the records that keep finished jobs
from running again.

**Mend it:** `appendonly yes`. `appendfsync everysec` (the default) may lose the last second;
`appendfsync always` loses nothing that was answered.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project


def look(project: Project) -> Iterator[Finding]:
    for server in project.servers.redis:
        if server.durability.appendonly:
            continue
        left = server.durability.left_after_a_crash
        yield Finding(
            f"{server.where} holds {server.held} without an append-only file: after a crash "
            f"{left} is there",
            remedy="CONFIG SET appendonly yes  # and in redis.conf",
            setting="appendonly",
            value="no",
        )


CHECK = Check(
    "IDEM041", "a Redis that forgets at a restart", Severity.WARNING, look, asks_servers=True
)
