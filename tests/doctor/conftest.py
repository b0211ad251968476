"""Projects written by a test, and what the doctor says of them."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import _state

from celery_idem import binding
from celery_idem.doctor.checks import CHECKS
from celery_idem.doctor.project import Project
from celery_idem.doctor.runner import Report, chosen, run
from tests.support.apps import no_shared_tasks

#: Seconds that workers have for their answers, on a machine that is busy with other tests.
PATIENCE_S = 5.0

_numbers = itertools.count()

#: what every project begins with; a test's own text comes after it
HEAD = """
from celery import Celery, shared_task
from celery_idem import IdempotentTask

app = Celery(__name__, broker={broker!r}, backend={backend!r}, set_as_current=False)
app.conf.broker_transport_options = {{}}
"""


def only_shared(tasks: set[Any]) -> None:
    """Let these tasks alone be made for an app that is finalized: every ``@app.task`` is shared
    with all apps of the process, and a test has several."""
    _state._on_app_finalizers.clear()
    _state._on_app_finalizers.update(tasks)


@contextmanager
def no_other_apps() -> Iterator[None]:
    """A ``@shared_task`` is made at once for apps of other tests that are finalized already."""
    others = set(_state._apps)
    _state._apps.clear()
    try:
        yield
    finally:
        _state._apps.update(others)


class Examined:
    """A project on disk, loaded once, and the doctor's report of it."""

    def __init__(self, app: Any, path: Path) -> None:
        self.app, self.path = app, path
        self._shared = set(_state._on_app_finalizers)

    def report(self, *ids: str, servers: bool = False, **options: Any) -> Report:
        """What these checks (or all) say. Without servers unless asked for."""
        only_shared(self._shared)
        project = Project(self.app, **{"patience_s": PATIENCE_S, **options})
        return run(project, chosen(CHECKS, only=ids, servers=servers))

    def found(self, *ids: str, **options: Any) -> list[tuple[str, str]]:
        """(id, task's bare name or setting) of what is found, sorted."""
        report = self.report(*ids, **options)
        return sorted(
            (it.check.id, it.finding.task.rpartition(".")[2] or it.finding.setting)
            for it in report.found
        )

    @property
    def worker_app(self) -> str:
        """What ``start_worker`` takes as its app, beside ``env=examined.env``."""
        return f"{self.path.stem}:app"

    @property
    def env(self) -> dict[str, str]:
        """With it another process finds the project."""
        return {"PYTHONPATH": str(self.path.parent)}

    def line_of(self, text: str) -> int:
        """The line of the project that holds the text."""
        lines = self.path.read_text().splitlines()
        return next(n for n, line in enumerate(lines, 1) if text in line)


@pytest.fixture(autouse=True)
def _no_django(monkeypatch: pytest.MonkeyPatch) -> None:
    """These projects have no Django, whatever other tests of this process have set up."""
    monkeypatch.setattr(binding, "_django_is_configured", lambda: False)
    monkeypatch.setattr(binding, "_django_has_us", lambda: False)
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)  # which workers would inherit


@pytest.fixture(autouse=True)
def _no_shared_tasks() -> Iterator[None]:
    with no_shared_tasks():
        yield


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Callable[..., Examined]]:
    """Factory ``project(source, broker=…, backend=…)`` of projects made of this text."""
    names: list[str] = []
    shared = set(_state._on_app_finalizers)
    apps: list[Any] = []

    def make(source: str, broker: str = "redis://localhost:1/0", backend: str = "") -> Examined:
        only_shared(shared)
        names.append(f"proj{next(_numbers)}")
        path = tmp_path / f"{names[-1]}.py"
        head = HEAD.format(broker=broker, backend=backend or None)
        path.write_text(head + textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(names[-1], path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[names[-1]] = module
        with no_other_apps():
            spec.loader.exec_module(module)
        apps.append(module.app)
        return Examined(module.app, path)

    yield make
    for app in apps:
        app.close()
    for name in names:
        sys.modules.pop(name, None)
    only_shared(shared)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Examined]]:
    """Factory ``shop(tasks=…, services=…)`` of a package ``shop`` that has these modules. Only its
    tasks, and what they import, are loaded."""
    shared = set(_state._on_app_finalizers)
    apps: list[Any] = []

    def make(tasks: str, **others: str) -> Examined:
        folder = tmp_path / "shop"
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        for name, source in others.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(source))
        head = HEAD.format(broker="redis://localhost:1/0", backend=None)
        (folder / "tasks.py").write_text(head + textwrap.dedent(tasks))
        monkeypatch.syspath_prepend(str(tmp_path))
        with no_other_apps():
            module = importlib.import_module("shop.tasks")
        apps.append(module.app)
        return Examined(module.app, folder / "tasks.py")

    yield make
    for app in apps:
        app.close()
    for name in [it for it in sys.modules if it.partition(".")[0] == "shop"]:
        del sys.modules[name]
    only_shared(shared)
