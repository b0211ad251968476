"""Bodies that can be read and are none of a task: each has its letter, and ends no worker (C20)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from tests.deadletters.looking import DEADLINE_S, queues_are_empty
from tests.deadletters.stages import letters_stage
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage

BODIES: list[Any] = [
    [1, 2],
    [],
    {},
    {"args": ["a"]},
    "text",
    7,
    None,
    [[], {}],
    [[], {}, {}, {}],
    [5, {}, {}],
    [["a"], [], {}],
    [["a"], 5, {}],
    [None, None, None],
    ["ab", {}, {}],
    [["a"], {}, 5],
    [["a"], {}, "text"],
    [["a"], {}, {"callbacks": 5}],
    [["a"], {}, {"callbacks": [5], "chord": "x", "chain": 7}],
]
TASKS = ["letters.good", "letters.plain_breaks"]


@pytest.fixture(scope="module", params=["prefork", "threads", "solo"])
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    with letters_stage(
        request, tmp_path_factory, "redis", dead_letters={"all_tasks": True}
    ) as stage:
        stage.start_worker(pool=request.param, concurrency=1)
        yield stage


def test_bodies_of_another_shape_end_no_worker_and_become_letters(stage: Stage) -> None:
    app = stage.tasks.app
    sent = {}
    with app.producer_or_acquire() as producer:
        for task in TASKS:
            for number, body in enumerate(BODIES):
                task_id = f"{task}-{number}"
                sent[task_id] = body
                producer.publish(
                    json.dumps(body), exchange="", routing_key="celery",
                    content_type="application/json", content_encoding="utf-8",
                    headers={"task": task, "id": task_id, "lang": "py", "retries": 0},
                )  # fmt: skip

    assert stage.tasks.good.delay("after all of them").get(timeout=DEADLINE_S)

    wait_until(lambda: queues_are_empty(stage), DEADLINE_S, "the acks")
    kept = {it.task_id for it in letters_of(app).page(Filter(), limit=500)}
    ran = {task_id for task_id in sent if app.AsyncResult(task_id).state == "SUCCESS"}
    missing = {task_id: sent[task_id] for task_id in sent if task_id not in kept | ran}
    assert missing == {}
    assert stage.workers[0].returncode is None
