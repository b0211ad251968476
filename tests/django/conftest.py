"""An empty database, and the shop on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.django import ready  # noqa: F401 - before any module that imports models


@pytest.fixture
def database(request: pytest.FixtureRequest, django_databases: Callable[[str], str]) -> str:
    """An empty, migrated alias: the parameter, else SQLite."""
    from tests.django.databases import emptied

    alias = django_databases(getattr(request, "param", "sqlite"))
    emptied(alias)
    return alias


@pytest.fixture
def shop(
    database: str,
    django_databases: Callable[[str], str],
    load_app: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> Callable[..., Any]:
    """``shop(broker_url, store="django", **idem)``: the shop's app with ``database`` as the
    default one, here and in workers that are started afterwards."""
    from tests.django.databases import as_default, url_of

    plan = tmp_path / "plan"
    plan.mkdir()

    def opened(broker: str, store: str = "django", **idem: Any) -> Any:
        import json

        setting = {"store": store, "lease_s": 3, **idem}
        monkeypatch.setenv("TEST_DATABASE_URL", url_of(database))
        monkeypatch.setenv("TEST_IDEM", json.dumps(setting))
        monkeypatch.setenv("TEST_PLAN", str(plan))
        as_default(database, setting, monkeypatch)
        return load_app("tests.django.jobs", TEST_BROKER=broker)

    return opened


@pytest.fixture
def plan(tmp_path: Any) -> Callable[[str, str], None]:
    """``plan(point, "fail 1")``: what happens there, and how often."""

    def write(point: str, what: str) -> None:
        (tmp_path / "plan" / point).write_text(what)

    return write
