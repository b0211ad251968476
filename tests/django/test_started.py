"""``track_started`` with results in a database, which writes over whatever is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.django import databases
from tests.django.databases import POSTGRES
from tests.support.effects import Effects
from tests.support.waiting import wait_until
from tests.support.workers import Worker

DEADLINE_S = 90
APP = "tests.apps.idem:app"


@pytest.mark.parametrize("database", [POSTGRES], indirect=True)
def test_a_delivery_that_has_nothing_to_say_does_not_write_over_the_outcome(
    database: str,
    load_app: Callable[..., Any],
    start_worker: Callable[..., Worker],
    redis_url: str,
    effects: Effects,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Its message comes again when all is done and handed on: whoever asks later would wait for
    ever."""
    idem = {"store": redis_url, "lease_s": 3}
    databases.as_default(database, idem, monkeypatch)
    monkeypatch.setenv("TEST_DATABASE_URL", databases.url_of(database))
    tasks = load_app(
        "tests.apps.idem",
        TEST_BROKER=redis_url,
        TEST_BACKEND="django-db",
        TEST_IDEM=json.dumps(idem),
        TEST_CONF=json.dumps({"task_track_started": True}),
    )
    worker = start_worker(APP, concurrency=1)
    gate = tmp_path / "gate"
    call = {"args": ("g", str(gate)), "task_id": "the-same", "link": tasks.by_id.si("after")}

    first = tasks.gated.apply_async(**call)
    wait_until(lambda: tasks.app.AsyncResult(first.id).state == "STARTED", DEADLINE_S, "its start")
    gate.touch()
    told = first.get(timeout=DEADLINE_S)
    effects.wait_count("after", 1, DEADLINE_S)
    tasks.gated.apply_async(**call)
    worker.wait_log(r"the-same\] ignored", DEADLINE_S)

    again = tasks.app.AsyncResult("the-same")
    assert (again.state, again.get(timeout=DEADLINE_S)) == ("SUCCESS", told)
