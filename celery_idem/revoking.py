"""``app.control.revoke`` that outlives workers (C65).

Celery keeps revoked ids in the memory of the workers that run when it is said: after a restart,
or where none was up, the task runs. Here the id is written to the store first; a worker reads them
when it starts to consume, and a replay of dead letters asks for the one it sends.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.app.control import Control
from celery.worker import state

from celery_idem.binding import binding_of
from celery_idem.core.errors import IdemError
from celery_idem.core.key import REVOKED_TASK
from celery_idem.core.settings import DEFAULT_REVOKE_S
from celery_idem.stores.base import Store

logger = logging.getLogger("celery_idem.revoking")

#: Revoked ids that a worker reads at its start.
MOST = 100_000

_CELERYS = "celery.app.control:Control"
_OURS = "celery_idem.revoking:DurableControl"


class DurableControl(Control):
    """Celery's control, whose ``revoke`` is kept for four weeks."""

    def revoke(self, task_id: Any, *args: Any, **options: Any) -> Any:
        """Celery's, and durable. A store that can't be reached is logged: the workers that run
        now are told all the same."""
        ids = task_id if isinstance(task_id, (list, tuple, set)) else [task_id]
        try:
            store = binding_of(self.app).store
            for each in ids:
                store.revoke(f"{REVOKED_TASK}{each}", round(DEFAULT_REVOKE_S * 1000))
        except IdemError as error:
            logger.error("a revocation is not durable: %s", error)
        return super().revoke(task_id, *args, **options)


def install(app: Any) -> None:
    """Make this app's revocations durable, unless it has a control class of its own."""
    if app.control_cls == _CELERYS and "control" not in vars(app):
        app.control_cls = _OURS


def load(app: Any) -> int:
    """Tell this worker what was revoked before it came. Returns how many."""
    count = 0
    try:
        for record in binding_of(app).store.scan(REVOKED_TASK, MOST):
            if record.key.startswith(REVOKED_TASK) and record.revoked:
                state.revoked.add(record.key[len(REVOKED_TASK) :])
                count += 1
    except IdemError as error:
        logger.error("revocations could not be read: %s", error)
    return count


def is_revoked(store: Store, task_id: str) -> bool:
    """Whether this task id was revoked, durably."""
    record = store.get(f"{REVOKED_TASK}{task_id}") if task_id else None
    return record is not None and record.revoked
