"""Workflows with django-celery-results on PostgreSQL: follow-ups once, none missing (C50, C51)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord

from tests.django import databases
from tests.django.databases import POSTGRES
from tests.support.effects import Effects
from tests.support.waiting import wait_until
from tests.support.workers import Worker

DEADLINE_S = 90
APP = "tests.apps.flows:app"

pytestmark = [
    pytest.mark.parametrize(
        "database",
        [POSTGRES],
        indirect=True,
    ),
    pytest.mark.parametrize("store", ["redis", "django"]),
]


@pytest.fixture
def flows(
    database: str,
    store: str,
    load_app: Callable[..., Any],
    redis_url: str,
    effects: Effects,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Callable[..., Any]:
    """``flows(**environment)``: the app of workflows, with its results in the database."""

    def load(**environment: str) -> Any:
        idem = {"store": redis_url if store == "redis" else "django", "lease_s": 2}
        databases.as_default(database, idem, monkeypatch)
        monkeypatch.setenv("TEST_DATABASE_URL", databases.url_of(database))
        return load_app(
            "tests.apps.flows",
            TEST_BROKER=redis_url,
            TEST_BACKEND="django-db",
            TEST_IDEM=json.dumps(idem),
            TEST_MOMENTS=str(tmp_path),
            **environment,
        )

    return load


@pytest.fixture
def two_workers(start_worker: Any) -> Callable[[], list[Worker]]:
    """One process each: a worker whose prefetch is full has no fetch under way, in which kombu's
    own Redis transport would lose a message with its worker (docs/guarantees.md)."""

    def start() -> list[Worker]:
        workers = [start_worker(APP, hostname=f"w{n}@h", wait=False) for n in range(2)]
        return [worker.wait_ready() for worker in workers]

    return start


def test_a_chord_of_which_every_message_comes_twice_has_one_body_with_every_result(
    flows: Any, effects: Effects, start_worker: Any, redis_url: str
) -> None:
    """C50: the counter of parts goes down once for each member, not for each delivery."""
    tasks = flows(TEST_TWICE="1")
    start_worker(APP, concurrency=4)
    labels = [f"m{n}" for n in range(10)]

    result = chord((tasks.mark.s(label=label) for label in labels), tasks.body.s())()

    assert result.get(timeout=DEADLINE_S) == labels
    wait_quiet(redis_url)
    assert [effects.count(label) for label in labels] == [1] * 10
    assert effects.count("body") == 1


def test_a_chords_body_runs_once_with_every_part_whenever_a_member_dies(
    flows: Any, effects: Effects, two_workers: Any, redis_url: str, tmp_path: Path
) -> None:
    """C50, C51: after its result is recorded, its part is counted, its hand-over is noted."""
    tasks = flows()
    two_workers()
    for bodies, moment in enumerate(("done", "part", "settled"), 1):
        labels = [f"{moment}-{n}" for n in range(3)]
        ids = [str(uuid.uuid4()) for _ in labels]
        (tmp_path / f"{moment}:{ids[-1]}").write_text("child")

        result = chord(
            (
                tasks.mark.s(label=label).set(task_id=i)
                for label, i in zip(labels, ids, strict=True)
            ),
            tasks.body.s(),
        )()

        assert result.get(timeout=DEADLINE_S) == labels, moment
        wait_quiet(redis_url)
        assert effects.count(f"died:{moment}") == 1
        assert [effects.count(label) for label in labels] == [1, 1, 1], moment
        assert effects.count("body") == bodies, moment


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_chain_goes_on_once_whenever_its_first_member_dies(
    flows: Any, effects: Effects, two_workers: Any, redis_url: str, tmp_path: Path
) -> None:
    """C51: killed after a's result is stored and before b is published, and after b is published
    and before a is acked; the child alone, and the whole worker."""
    tasks = flows()
    workers = two_workers()
    for how in ("child", "tree"):
        for moment in ("done", "published", "part"):
            a, b, c = (f"{letter}-{moment}-{how}" for letter in "abc")
            flow = chain(*(tasks.mark.s(label=label) for label in (a, b, c)))
            steps, results = flow.prepare_steps((), {}, flow.tasks)
            dies = results[-2] if moment == "published" else results[-1]
            (tmp_path / f"{moment}:{dies.id}").write_text(how)

            steps[-1].apply_async(chain=steps[:-1])

            assert results[0].get(timeout=DEADLINE_S) == c
            wait_quiet(redis_url)
            assert [effects.count(label) for label in (a, b, c)] == [1, 1, 1], (moment, how)
            for worker in workers:
                if worker.returncode is not None:
                    worker.start().wait_ready()
    assert {m: effects.count(f"died:{m}") for m in ("done", "published", "part")} == {
        "done": 2, "published": 2, "part": 2,
    }  # fmt: skip


def wait_quiet(url: str) -> None:
    """Nothing waits in the queue, and nothing is held by a worker."""
    import redis

    with redis.Redis.from_url(url) as client:
        wait_until(
            lambda: client.llen("celery") == 0 and client.hlen("unacked") == 0,
            DEADLINE_S,
            "an empty queue and no delivery",
        )
