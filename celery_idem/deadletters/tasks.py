"""The app's tasks, as an operator's process knows them."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any

logger = logging.getLogger("celery_idem.deadletters")

_lock = threading.Lock()
_imported: weakref.WeakSet[Any] = weakref.WeakSet()


def task_named(app: Any, name: str) -> Any | None:
    """The app's task of this name.

    Celery imports ``imports``, ``include`` and what ``autodiscover_tasks`` finds in workers only.
    A command or a web process does it here, once, at the first name that it does not know. Where
    that fails it is logged, and the name stays unknown: its letters are kept.
    """
    task = app.tasks.get(name)
    if task is not None:
        return task
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    with _lock:
        if app not in _imported:
            _imported.add(app)
            _import(app)
    return app.tasks.get(name)


def _import(app: Any) -> None:
    try:
        app.loader.import_default_modules()
    except Exception as error:
        logger.error("the app's modules can't be imported (%s): %s", type(error).__name__, error)
