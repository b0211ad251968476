"""RabbitMQ closes the channel of a worker that holds a message for longer than `consumer_timeout`.

A late-ack message is unacked while its task runs, while it waits in the prefetch, and until a
countdown or retry delay is over. RabbitMQ allows half an hour for that by default; then it closes
the channel, gives the message to another worker, and the job starts from the beginning (C06). It
can't be extended by a heartbeat. A stock worker exits then. Where an `IdempotentTask` runs, it
runs on, the worker connects again, and the second delivery waits for the outcome; but all that the
worker held is delivered again, plain late-ack tasks too, and every so often again until the run is
over. With `worker_cancel_long_running_tasks_on_connection_loss` the run is stopped and begun anew.

The broker is asked: by `rabbitmqctl`, where it runs on this machine; for the timeouts of single
queues by the management API (`--rabbitmq-api`). Where neither answers, the default of its version
is taken, and the finding says so.

**Mend it:** raise `consumer_timeout` in `rabbitmq.conf` (milliseconds), or the queue's by a
policy (RabbitMQ 3.12 and later), or lower the time limit or the delay.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.delays import longest_delays
from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project
from celery_idem.doctor.rabbitmq import RabbitFacts
from celery_idem.doctor.routes import queue_of


def look(project: Project) -> Iterator[Finding]:
    if project.broker != "amqp":
        return
    broker = project.servers.rabbitmq
    for facts in project.tasks:
        limit_s = facts.time_limit_s
        timeout_s = broker.of_queue(queue_of(project, facts.task) or "")
        if not facts.acks_late or limit_s is None or timeout_s is None or limit_s < timeout_s:
            continue
        yield Finding(
            f"a run may last {limit_s:g} s, and RabbitMQ gives it {timeout_s:g} s",
            arithmetic=f"time limit {limit_s:g} s >= consumer_timeout {timeout_s:g} s "
            f"({broker.source})",
            remedy=_remedy(limit_s),
            task=facts.name,
            setting="consumer_timeout",
            value=f"{timeout_s:g}",
            place=facts.place,
        )
    yield from _delays(project, broker)


def _delays(project: Project, broker: RabbitFacts) -> Iterator[Finding]:
    if broker.timeout_s is None or _delays_natively(project):
        return
    for delay in longest_delays(project, broker.timeout_s):
        yield Finding(
            f"{delay.what} of {delay.seconds:g} s is longer than RabbitMQ allows",
            arithmetic=f"{delay.seconds:g} s > consumer_timeout {broker.timeout_s:g} s "
            f"({broker.source})",
            remedy=_remedy(delay.seconds),
            task=delay.task,
            setting="consumer_timeout",
            value=f"{broker.timeout_s:g}",
            place=delay.place,
        )


def _delays_natively(project: Project) -> bool:
    """With quorum queues Celery lets the broker hold delayed messages."""
    conf = project.app.conf
    return bool(conf.task_default_queue_type == "quorum")


def _remedy(seconds: float) -> str:
    return f"consumer_timeout = {round(2 * seconds * 1000)}  # rabbitmq.conf, milliseconds"


CHECK = Check(
    "IDEM012",
    "RabbitMQ's consumer_timeout is shorter than a run or a delay",
    Severity.ERROR,
    look,
    asks_servers=True,
    reads_source=True,
)
