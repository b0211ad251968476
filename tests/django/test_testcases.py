"""A project's own tests: Django's ``TestCase``, which wraps each test in a transaction."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from django.db import transaction
from django.test import TestCase

from celery_idem import IdempotentTask, StepMisused
from celery_idem.binding import binding_of
from celery_idem.stores.memory import MemoryStore
from tests.django import databases
from tests.django.databases import ALL
from tests.django.shop.models import Effect

pytestmark = pytest.mark.parametrize(
    "database",
    ALL,
    indirect=True,
)


@pytest.fixture
def task(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An idempotent task in eager mode: a row in a transaction, then a plain step."""
    databases.as_default(database, {}, monkeypatch)
    app = Celery("tested", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_always_eager=True, task_eager_propagates=True)
    binding_of(app).use(MemoryStore())

    class Job(IdempotentTask):
        name = "tested.job"
        idem_key = "{number}"

        def run(self, number: int, around: bool = False) -> str:
            self.step.transaction("row", lambda: Effect.objects.create(name="row").note)
            if around:
                with transaction.atomic():
                    self.step("mail", lambda: "mailed")
            return str(self.step("mail", lambda: "mailed"))

    yield app.register_task(Job())
    app.close()


def run_case(test: Any) -> None:
    """Run one function as the test of a ``TestCase``; raise what went wrong."""

    class Case(TestCase):
        def test(self) -> None:
            test(self)

    result = unittest.TestResult()
    unittest.TestSuite([Case("test")]).run(result)
    assert result.testsRun == 1
    assert [text for _, text in result.errors + result.failures] == []


def test_steps_run_inside_a_testcase_and_leave_nothing_behind(task: Any) -> None:
    def test(case: TestCase) -> None:
        assert task.delay(1).get() == "mailed"
        assert task.delay(1).get() == "mailed"  # a duplicate, as in production
        assert Effect.objects.count() == 1

    run_case(test)

    assert [Effect.objects.count(), databases.entries("default").count()] == [0, 0]


def test_a_transaction_of_the_test_itself_is_still_one(task: Any) -> None:
    """Only the one that Django puts around the test is looked through."""

    def test(case: TestCase) -> None:
        with case.assertRaisesMessage(StepMisused, "inside an open transaction"):
            task.delay(1, around=True)

    run_case(test)


def test_what_is_sent_on_commit_is_captured(task: Any) -> None:
    def test(case: TestCase) -> None:
        with case.captureOnCommitCallbacks(execute=True) as callbacks:
            task_id = task.delay_on_commit(1)
            assert Effect.objects.count() == 0
        assert len(callbacks) >= 1
        assert isinstance(task_id, str)
        assert Effect.objects.count() == 1

    run_case(test)
