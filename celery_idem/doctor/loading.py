"""Bind all tasks of an app, going on after one that can't be: every mistake is told at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery._state import _on_app_finalizers as _finalizers  # type: ignore[attr-defined]
from celery.local import maybe_evaluate

from celery_idem.core.errors import IdemError


@dataclass(frozen=True, slots=True)
class Broken:
    """A task that this package refuses, or a module that holds one, and the reason."""

    name: str
    error: IdemError


def load_tasks(app: Any) -> list[Broken]:
    """Import the app's task modules as a worker does, and bind their tasks.

    Returns what this package refuses. Other errors go through: the project can't be imported, and
    its worker would say the same.
    """
    loading = _Loading(app)
    loading.attempt(app.loader.import_default_modules)
    if loading.broken:
        for module in app.loader.default_modules:
            loading.attempt(partial(app.loader.import_task_module, module), module)
    loading.attempt(app.finalize)
    if loading.broken:
        _finish(app, loading)
    return loading.broken


def _finish(app: Any, loading: _Loading) -> None:
    """Celery's ``finalize``, which stops at the first task that is refused, one task at a time."""
    app.finalized = True
    with warnings.catch_warnings():
        # Celery's own are registered again: 5.7 warns of a name that is there
        warnings.simplefilter("ignore")
        for announce in list(_finalizers):
            loading.attempt(partial(announce, app))
    while app._pending:
        loading.attempt(partial(maybe_evaluate, app._pending.popleft()))
    for task in list(app._tasks.values()):
        loading.attempt(partial(task.bind, app), task.name)


class _Loading:
    def __init__(self, app: Any) -> None:
        self._app = app
        self.broken: list[Broken] = []

    def attempt(self, step: Callable[[], object], name: str = "") -> None:
        """Do it; note what it refused, under the name of the task that appeared with it."""
        before = set(self._app._tasks)
        try:
            step()
        except IdemError as error:
            if str(error) in {str(it.error) for it in self.broken}:
                return
            new = [task for task in self._app._tasks if task not in before]
            self.broken.append(Broken(self._named(error) or (new or [name])[-1], error))

    def _named(self, error: IdemError) -> str:
        # errors of a task begin with its name
        text = str(error)
        return next((name for name in self._app._tasks if text.startswith(f"{name}: ")), "")
