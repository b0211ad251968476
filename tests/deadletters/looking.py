"""Looks at letters and queues that several tests share."""

from __future__ import annotations

from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Letter
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage

DEADLINE_S = 60


def letter_of(stage: Stage, task_id: str) -> Letter:
    """The letter of this task, as soon as it is there."""
    store = letters_of(stage.tasks.app)
    return wait_until(
        lambda: next((it for it in store.page(Filter(), limit=500) if it.task_id == task_id), None),
        DEADLINE_S,
        f"a letter of {task_id}",
    )


def queues_are_empty(stage: Stage) -> bool:
    """Whether the message is in no queue and in no worker's hands."""
    with stage.server.client() as client:
        return client.llen("celery") == 0 and client.hlen("unacked") == 0
