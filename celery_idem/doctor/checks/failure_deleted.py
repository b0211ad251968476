"""Messages of failed tasks are rejected, and nothing catches them.

With `acks_on_failure=False` (before Celery 5.7 `acks_on_failure_or_timeout=False`) a late-ack
task that fails is rejected without being requeued. On RabbitMQ that sends it to the queue's dead
letter exchange, if it has one. On Redis, SQS and the others it is a delete: nothing is left
(C37).

Idempotent tasks are not concerned: their dead letter is stored before the message goes.

**Mend it:** keep letters of plain tasks, too (`dead_letters: {"all_tasks": True}`), or ack
failures, or give the queue a dead letter exchange. One that a RabbitMQ *policy* sets can't be
seen from here: silence the check then.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.paste import change
from celery_idem.doctor.project import Project

_DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"


def look(project: Project) -> Iterator[Finding]:
    if project.settings.dead_letters.get("all_tasks") or _is_caught(project):
        return
    for facts in project.plain_tasks:
        if facts.acks_late and not acks_on(facts.task, "acks_on_failure"):
            yield Finding(
                f"when it fails its message is rejected, which on {project.broker} deletes it",
                remedy=change("idem", dead_letters={"all_tasks": True}),
                task=facts.name,
                setting="acks_on_failure",
                value="False",
                place=facts.place,
            )


def acks_on(task: object, option: str) -> bool:
    """The task's ``acks_on_failure`` or ``acks_on_timeout``, in Celery before 5.7 as well."""
    given = getattr(task, option, None)
    if given is None:
        given = getattr(task, "acks_on_failure_or_timeout", None)
    return given is None or bool(given)


def _is_caught(project: Project) -> bool:
    if project.broker != "amqp":
        return False
    queues = project.app.amqp.queues.values()
    return all(_DEAD_LETTER_EXCHANGE in (queue.queue_arguments or {}) for queue in queues)


CHECK = Check("IDEM022", "messages of failed tasks are deleted", Severity.WARNING, look)
