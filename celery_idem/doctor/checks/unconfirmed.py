"""Publishes on RabbitMQ are not confirmed: a broker that is short of memory or disk drops them.

By default Celery writes a message to the socket and calls it sent. A broker that blocks
publishers, or dies before it has written the message, loses it, and nobody is told (C21). That is
true of what your code sends, and of links, chains and chords, which Celery sends. What this package
sends in exchange for another message (retries of idempotent tasks, copies that wait, replays,
letters on a queue) it has confirmed in any case, within five seconds, or the other message stays.

**Mend it:** the line that the finding gives. It costs one round trip a message. A caller then waits
for as long as the broker blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.paste import change
from celery_idem.doctor.project import Project


def look(project: Project) -> Iterator[Finding]:
    if project.broker != "amqp" or not project.idempotent_tasks:
        return
    if not project.transport_options.get("confirm_publish"):
        yield Finding(
            "a message that the broker drops counts as sent",
            remedy=change("broker_transport_options", confirm_publish=True),
            setting='broker_transport_options["confirm_publish"]',
            value="False",
        )


CHECK = Check("IDEM044", "publishes are not confirmed", Severity.WARNING, look)
