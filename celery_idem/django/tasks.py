"""For beat: ``{"task": "celery_idem.prune", "schedule": crontab(hour=4, minute=0)}``.

Found by ``app.autodiscover_tasks()``, since ``celery_idem.django`` is in ``INSTALLED_APPS``.
"""

from __future__ import annotations

from celery import current_app, shared_task

from celery_idem.binding import store_of

#: Records deleted by one statement's batch, and at most by one run of the task.
BATCH = 1000
MOST = 100_000


@shared_task(name="celery_idem.prune", ignore_result=True)
def prune(most: int = MOST) -> int:
    """Delete records that are past their retention, in batches of 1000, at most ``most``.

    A plain task: to delete what is expired twice is to delete it once.
    """
    prune_some = getattr(store_of(current_app), "prune", None)
    total = 0
    while prune_some is not None and total < most:
        gone = int(prune_some(limit=min(BATCH, most - total)))
        total += gone
        if not gone:
            break
    return total
