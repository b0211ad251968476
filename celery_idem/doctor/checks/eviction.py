"""A Redis that holds messages, records or dead letters may throw them away when its memory is full.

With any `maxmemory-policy` but `noeviction` a full server deletes keys, and says nothing (C22). A
list that is deleted is a whole queue: with `allkeys-lru` all 300 waiting jobs of a test went at
once. The `volatile-*` policies delete what has an expiry: done records and leases have one. An
evicted lease looks like a dead owner, an evicted done record lets a duplicate run.

A server without a bound (`maxmemory 0`) evicts nothing as yet: a warning.

**Mend it:** `noeviction` (a full server then refuses writes, which is seen), and a server of its
own for the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project


def look(project: Project) -> Iterator[Finding]:
    for server in project.servers.redis:
        durability = server.durability
        if not durability.evicts:
            continue
        full = f"maxmemory {durability.maxmemory} bytes" if durability.maxmemory else "maxmemory 0"
        yield Finding(
            f"{server.where} may throw {server.held} away when it is full",
            arithmetic=f"{full}, maxmemory-policy {durability.policy}",
            remedy="CONFIG SET maxmemory-policy noeviction  # and in redis.conf",
            setting="maxmemory-policy",
            value=durability.policy,
            severity=Severity.ERROR if durability.maxmemory else Severity.WARNING,
        )


CHECK = Check(
    "IDEM040", "a Redis that may evict messages or records", Severity.ERROR, look, asks_servers=True
)
