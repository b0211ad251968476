"""The app's tasks, as an operator's process knows them."""

from __future__ import annotations

import threading
import weakref
from typing import Any

_lock = threading.Lock()
_imported: weakref.WeakSet[Any] = weakref.WeakSet()


def task_named(app: Any, name: str) -> Any | None:
    """The app's task of this name.

    Celery imports ``imports``, ``include`` and what ``autodiscover_tasks`` finds in workers only.
    A command or a web process does it here, at the first name that it does not know.
    """
    task = app.tasks.get(name)
    if task is not None:
        return task
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    with _lock:
        if app not in _imported:
            app.loader.import_default_modules()
            _imported.add(app)
    return app.tasks.get(name)
