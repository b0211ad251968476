"""A version that is installed has a fault that this project meets.

Only faults that were seen or read in the source, that a newer version mends or a setting avoids,
and that the project's own set-up can meet: a fault of the Redis transport is no finding on
RabbitMQ.

**Mend it:** the version or the setting that the finding names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.paste import change
from celery_idem.doctor.project import Project


@dataclass(frozen=True, slots=True)
class Fault:
    """A known fault: where, in which versions, what happens, and the way out."""

    package: str
    versions: str
    what: str
    remedy: str
    meets: Callable[[Project], bool]


def _unkept_redis(project: Project) -> bool:
    return project.broker == "redis" and not project.kept


def _late_acks_on_redis(project: Project) -> bool:
    late = any(facts.acks_late for facts in project.tasks)
    loses = project.app.conf.worker_cancel_long_running_tasks_on_connection_loss
    return project.broker == "redis" and late and not loses


def _quorum(project: Project) -> bool:
    return project.broker == "amqp" and project.app.conf.task_default_queue_type == "quorum"


def _deduplicates(project: Project) -> bool:
    return bool(project.app.conf.worker_deduplicate_successful_tasks)


#: the ones we know
FAULTS: tuple[Fault, ...] = (
    Fault(
        "celery", "==5.7.0",
        "a worker with late acks ends when Redis is away for some seconds",
        change("idem", visibility_keeper=True) + "  # or celery<5.7",
        _unkept_redis,
    ),
    Fault(
        "celery", "<5.6.3",
        "after a lost connection to Redis, running tasks of the prefork pool are started again",
        'pip install "celery>=5.6.3"',
        _late_acks_on_redis,
    ),
    Fault(
        "kombu", "<5.7",
        "a connection to Redis that is half-open while the worker waits is not noticed",
        'pip install "kombu>=5.7"',
        _unkept_redis,
    ),
    Fault(
        "celery", "<5.7",
        "a retried, delayed message on quorum queues is dropped by RabbitMQ before 4.0.1 (C43)",
        'pip install "celery>=5.7"',
        _quorum,
    ),
    Fault(
        "celery", "<5.7",
        "worker_deduplicate_successful_tasks loses the rest of a chain (C51)",
        'pip install "celery>=5.7"',
        _deduplicates,
    ),
)  # fmt: skip


def look(project: Project) -> Iterator[Finding]:
    for fault in FAULTS:
        try:
            installed = version(fault.package)
        except PackageNotFoundError:  # pragma: no cover - both are requirements of this package
            continue
        if Version(installed) in SpecifierSet(fault.versions, prereleases=True):
            if fault.meets(project):
                yield Finding(
                    f"{fault.package} {installed}: {fault.what}",
                    remedy=fault.remedy,
                    setting=fault.package,
                    value=installed,
                )


CHECK = Check("IDEM070", "a version with a known fault", Severity.WARNING, look)
