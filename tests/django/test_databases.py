"""The tests' own databases: nobody else's, and free of the test before."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from django.db import connections

from celery_idem.django.store import DjangoStore
from tests.conformance.asking import take
from tests.django import databases, settings
from tests.django.databases import SERVERS
from tests.django.shop.models import Effect
from tests.support.waiting import wait_until
from tests.support.workers import ROOT


def named_by(code: str) -> list[str]:
    """What a process that this one starts calls its databases, and keeps its files in."""
    code += "; from tests.django import settings; print(settings.MARK, settings.FOLDER)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.check_output([sys.executable, "-c", code], env=env, text=True).split()


def test_a_worker_has_the_databases_of_its_test() -> None:
    assert named_by("import sys") == [settings.MARK, settings.FOLDER]


def test_a_pytest_that_a_test_starts_has_databases_of_its_own() -> None:
    mark, folder = named_by("import pytest")

    assert mark != settings.MARK
    assert folder != settings.FOLDER
    os.rmdir(folder)


@pytest.mark.parametrize("database", SERVERS, indirect=True)
def test_a_test_leaves_no_connection_and_no_lock(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases.as_default(database, {}, monkeypatch)
    connections["default"].set_autocommit(False)
    Effect.objects.create(name="in a transaction that nobody ends")
    store: Any = DjangoStore(database)
    take(store)

    databases.forget_further()

    wait_until(lambda: not databases.other_connections(database), 10, "the end of all connections")
    assert not Effect.objects.using(database).exists()
