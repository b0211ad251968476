"""Old letters are deleted only where that is asked for, and never silently."""

from __future__ import annotations

import logging
import time
from typing import Any

from celery_idem.core.errors import IdemError
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letter_settings_of, quick_letters_of

logger = logging.getLogger("celery_idem.deadletters")

#: How often a worker looks, in seconds, and how many letters it deletes at most each time, so
#: that its event loop is not held up.
EVERY_S = 60.0
MOST_AT_ONCE = 200


def sweep(app: Any) -> int:
    """Delete letters older than ``retention_s``, and the oldest above ``max_letters``. Returns
    how many; what is left over is deleted at the next look."""
    settings = letter_settings_of(app)
    try:
        store = quick_letters_of(app)
        gone = 0
        if settings.retention_s is not None:
            until_ms = round((time.time() - settings.retention_s) * 1000)
            gone += _delete_oldest(store, Filter(until_ms=until_ms), MOST_AT_ONCE)
        if settings.max_letters is not None:
            above = store.count(Filter()) - settings.max_letters
            gone += _delete_oldest(store, Filter(), min(above, MOST_AT_ONCE))
    except IdemError as error:
        logger.warning("old letters could not be deleted: %s", error)
        return 0
    if gone:
        logger.warning("%d old letters deleted, as retention_s and max_letters ask for", gone)
    return gone


def _delete_oldest(store: Any, wanted: Filter, most: int) -> int:
    gone = 0
    if most <= 0:
        return 0
    for letter in store.walk(wanted):
        gone += store.delete(letter.id)
        if gone >= most:
            break
    return gone
