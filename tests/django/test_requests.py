"""Jobs and steps inside web requests, each of which is one transaction (ATOMIC_REQUESTS)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from django.db import connections, transaction

from celery_idem import IdempotentTask, StepMisused
from celery_idem.binding import binding_of, store_of
from celery_idem.stores.memory import MemoryStore
from tests.django import databases
from tests.django.databases import ALL, POSTGRES
from tests.django.shop.models import Effect, Order
from tests.support.effects import Effects

DEADLINE_S = 90


class Undo(Exception):
    """Makes a request fail, and its transaction roll back."""


@pytest.fixture
def request_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], str]], Any]:
    """``request_to(view)``: the answer of that view, called under ATOMIC_REQUESTS."""
    from django.test import Client

    from tests.django import urls

    def ask(view: Callable[[Any], str]) -> Any:
        monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
        monkeypatch.setitem(connections.databases["default"], "ATOMIC_REQUESTS", True)
        urls.view.append(view)
        try:
            return Client(raise_request_exception=False).get("/test/")
        finally:
            urls.view.pop()

    return ask


@pytest.mark.parametrize("database", [POSTGRES], indirect=True)
def test_a_job_of_a_request_starts_when_the_request_has_committed(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any, request_to: Any
) -> None:
    """C66: the worker finds the row, and the caller knows the id before anything is sent."""
    jobs = shop(redis_url)
    start_worker("tests.django.jobs:app", concurrency=1)

    def view(_: Any) -> str:
        assert transaction.get_connection().in_atomic_block
        Order.objects.create(number="1")
        task_id = jobs.reads.delay_on_commit("1")
        assert store_of(jobs.app).get("shop.reads:reads:1") is None
        return str(task_id)

    answer = request_to(view)

    assert answer.status_code == 200
    task_id = answer.content.decode()
    assert jobs.app.AsyncResult(task_id).get(timeout=DEADLINE_S) == "1"
    assert effects.count("reads:1") == 1


@pytest.mark.parametrize("database", [POSTGRES], indirect=True)
def test_a_request_that_fails_sends_no_job_and_leaves_no_key(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any, request_to: Any
) -> None:
    """C66: and a later request with that key works."""
    jobs = shop(redis_url)
    start_worker("tests.django.jobs:app", concurrency=1)

    def fails(_: Any) -> str:
        Order.objects.create(number="1")
        jobs.reads.delay_on_commit("1")
        raise Undo

    def works(_: Any) -> str:
        Order.objects.create(number="1")
        return str(jobs.reads.delay_on_commit("1"))

    assert request_to(fails).status_code == 500
    assert not Order.objects.exists()
    assert store_of(jobs.app).get("shop.reads:reads:1") is None

    task_id = request_to(works).content.decode()
    assert jobs.app.AsyncResult(task_id).get(timeout=DEADLINE_S) == "1"
    assert effects.count("reads:1") == 1


@pytest.fixture
def job(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """``job(body)``: the body as one idempotent task of one key, run in this process."""
    databases.as_default(database, {}, monkeypatch)
    app = Celery("requests", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_always_eager=True, task_eager_propagates=True)
    binding_of(app).use(MemoryStore())

    class Job(IdempotentTask):
        name = "requests.job"
        idem_key = "{key}"
        body: Any = None

        def run(self, key: str) -> Any:
            return type(self).body(self)

    task: Any = app.register_task(Job())

    def run(body: Callable[[Any], Any]) -> Any:
        Job.body = staticmethod(body)
        return task.apply(("1",)).get()

    yield run
    app.close()


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_a_transactional_step_of_a_request_is_done_when_the_request_has_committed(
    job: Any, database: str, request_to: Any
) -> None:
    hooks: list[str] = []

    def effect() -> str:
        Effect.objects.create(name="row")
        transaction.on_commit(lambda: hooks.append("sent"))
        return "written"

    def body(task: Any) -> str:
        value = task.step.transaction("effect", effect)
        assert not task.step.done("effect")
        assert hooks == []
        return str(value)

    answer = request_to(lambda _: job(body))

    assert (answer.status_code, answer.content) == (200, b"written")
    assert [Effect.objects.count(), databases.entries("default").count()] == [1, 1]
    assert hooks == ["sent"]


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_a_transactional_step_of_a_request_that_fails_is_not_done(
    job: Any, database: str, request_to: Any
) -> None:
    fails = [True]

    def body(task: Any) -> str:
        task.step.transaction("effect", Effect.objects.create, name="row", keep_result=False)
        if fails:
            raise Undo
        return "done"

    assert request_to(lambda _: job(body)).status_code == 500
    assert [Effect.objects.count(), databases.entries("default").count()] == [0, 0]

    fails.clear()
    assert request_to(lambda _: job(body)).content == b"done"
    assert [Effect.objects.count(), databases.entries("default").count()] == [1, 1]


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_a_plain_step_in_a_request_is_refused(job: Any, database: str, request_to: Any) -> None:
    """The request may still roll back what the step did, which would stay recorded as done."""
    refused: list[str] = []

    def view(_: Any) -> str:
        try:
            return str(job(lambda task: task.step("effect", Effect.objects.count)))
        except StepMisused as error:
            refused.append(str(error))
            raise

    assert request_to(view).status_code == 500
    assert "inside an open transaction" in refused[0]
