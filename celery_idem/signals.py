"""What happened to a key, for metrics and alarms. Receivers get ``sender`` and ``key`` always.

============= ============================== =================================================
signal        sender                         also given
============= ============================== =================================================
claimed       the task, or ``None``          ``task_id``, ``fence``, ``crashes``
completed     the task, or ``None``          ``task_id``, ``fence``
released      the task, or ``None``          ``task_id``, ``ending`` (retry, failure, release)
duplicate     the task, or ``None``          ``task_id``, ``done_by`` (the id that did the work)
conflict      the task, or ``None``          ``task_id``, ``held_by``, ``remaining_s``, ``action``
lease_lost    the task, or ``None``          ``task_id``
crashed       the task, or ``None``          ``task_id``, ``crashes``
dead_lettered the app                        ``letter``
replayed      the app                        ``letter``
flood         the app                        ``task``, ``lane``, ``count`` (letters in a minute)
============= ============================== =================================================

``crashed`` is sent by the worker's main process when it sees a child die, and by whoever takes
over an expired claim. A receiver that raises is logged by Celery and changes nothing.
"""

from __future__ import annotations

from typing import Any

from celery.utils.dispatch import Signal

claimed = Signal(name="idem_claimed")
completed = Signal(name="idem_completed")
released = Signal(name="idem_released")
duplicate = Signal(name="idem_duplicate")
conflict = Signal(name="idem_conflict")
lease_lost = Signal(name="idem_lease_lost")
crashed = Signal(name="idem_crashed")
dead_lettered = Signal(name="idem_dead_lettered")
replayed = Signal(name="idem_replayed")
flood = Signal(name="idem_flood")


def send(signal: Signal, sender: Any, **given: Any) -> None:
    """Send, at the cost of one look when nobody listens."""
    if signal.receivers:
        signal.send(sender=sender, **given)
