"""The database goes away in the middle of a transactional step: nothing of it has happened."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import DatabaseError, connections

from celery_idem.django.models import InboxEntry
from tests.django import databases
from tests.django.databases import SERVERS
from tests.django.shop.models import Effect
from tests.django.test_inbox import app, job

__all__ = ["app", "job"]


@pytest.mark.parametrize("database", SERVERS, indirect=True)
def test_a_connection_lost_inside_a_step_leaves_neither_effect_nor_record(
    job: Any, database: str, fault_proxy: Any
) -> None:
    """And the next run, on a new connection, has the effect once."""
    parts = urlsplit(databases.url_of(database))
    proxy = fault_proxy((parts.hostname, parts.port))
    user = f"{parts.username}:{parts.password}" if parts.password else parts.username
    alias = databases.alias_of(f"{parts.scheme}://{user}@127.0.0.1:{proxy.port}{parts.path}")
    lost = [True]

    def effect() -> str:
        Effect.objects.using(alias).create(name="row")
        if lost:
            proxy.cut()
        return "written"

    def body(task: Any) -> Any:
        return task.step.transaction("row", effect, using=alias)

    with pytest.raises(DatabaseError):
        job(body)
    connections[alias].close()
    assert Effect.objects.using(database).count() == 0
    assert InboxEntry.objects.using(database).count() == 0

    proxy.heal()
    lost.clear()
    assert job(body) == "written"
    connections[alias].close()

    assert Effect.objects.using(database).count() == 1
    assert InboxEntry.objects.using(database).count() == 1
