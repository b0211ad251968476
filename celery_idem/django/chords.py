"""The parts of a chord, with results in the database: each member is counted once (C50).

django-celery-results counts a chord down by one for each *report* of a member: a member whose
report comes twice makes the body run early, with a part missing, or never. And a report does come
twice, where a worker dies between it and the note that it was made. So the count and an entry in
the inbox are one transaction, as a step's effect and its record are. Only members that are
idempotent tasks are looked after; others are counted as before.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from typing import Any

from django.apps import apps
from django.db import DatabaseError, connections, router, transaction

from celery_idem.core.step import StepRecord, StepState
from celery_idem.django.inbox import insert_entry
from celery_idem.django.models import InboxEntry, digest_of
from celery_idem.task import IdempotentTask

logger = logging.getLogger("celery_idem.django.chords")

#: Kept as a step of this name and function, where the admin shows it.
PART = StepRecord(StepState.DONE, "celery_idem.django.chords.count_once").pack()
_RESULTS = "django_celery_results"


def install() -> None:
    """Wrap the database backend of django-celery-results, once, where that is installed."""
    if not apps.is_installed(_RESULTS):
        return
    backend = importlib.import_module(f"{_RESULTS}.backends.database").DatabaseBackend
    counts = backend.on_chord_part_return
    if getattr(counts, "counts_once", False):
        return

    @functools.wraps(counts)
    def on_chord_part_return(
        self: Any, request: Any, state: Any, result: Any, **kwargs: Any
    ) -> None:
        def count() -> None:
            counts(self, request, state, result, **kwargs)

        task = self.app.tasks.get(getattr(request, "task", None))
        if isinstance(task, IdempotentTask) and request.id and request.group:
            count_once(request.group, request.id, task._terms.retention_ms, count)
        else:
            count()

    on_chord_part_return.counts_once = True  # type: ignore[attr-defined]
    backend.on_chord_part_return = on_chord_part_return


def count_once(group_id: str, task_id: str, retention_ms: int, count: Any) -> None:
    """Call ``count`` unless this member of the group was counted before, in one transaction with
    the note that it was. What the last part sends is sent before that commits: after a crash in
    between, the body is sent again, under the id that it has."""
    counters = apps.get_model(_RESULTS, "ChordCounter")
    using = router.db_for_write(counters)
    if not _has_inbox(using):
        count()
        return
    with transaction.atomic(using=using):
        new = insert_entry(
            connections[using],
            digest=digest_of("%part", group_id, task_id),
            key=f"chord {group_id}",
            name=f"part {task_id}",
            fence=0,
            value=PART,
            retention_ms=retention_ms,
        )
        if new:
            count()


@functools.cache
def _has_inbox(alias: str) -> bool:
    """Whether that database has the table; asked once in a process."""
    try:
        tables = connections[alias].introspection.table_names()
    except DatabaseError:
        tables = [InboxEntry._meta.db_table]  # what it can't say now, the insert will
    if InboxEntry._meta.db_table in tables:
        return True
    logger.warning(
        "database %r has no table of ours: a member of a chord that is reported twice is counted "
        "twice there; run manage.py migrate celery_idem --database %s", alias, alias,
    )  # fmt: skip
    return False
