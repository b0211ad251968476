"""Steps in threads of the body: each once, whichever thread runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery

from celery_idem import IdempotentTask, StepMisused
from celery_idem.binding import binding_of
from celery_idem.stores.memory import MemoryStore

DEADLINE_S = 60


class Undo(Exception):
    """Ends a run."""


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """``run(body)``: the body as one idempotent task of one key, in this process."""
    app = Celery("threads", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_always_eager=True, task_eager_propagates=True)
    binding_of(app).use(MemoryStore())

    class Job(IdempotentTask):
        name = "threads.job"
        idem_key = "{key}"
        body: Any = None

        def run(self, key: str = "1") -> Any:
            return type(self).body(self)

    task: Any = app.register_task(Job())

    def once(body: Callable[[Any], Any]) -> Any:
        Job.body = staticmethod(body)
        return task.apply().get()

    yield once
    app.close()


def test_steps_that_eight_threads_took_are_done_once_over_two_runs(run: Any) -> None:
    done: list[int] = []

    def body(task: Any, fails: bool) -> list[int]:
        step = task.step
        with ThreadPoolExecutor(8) as threads:
            calls = [threads.submit(step, f"n:{n}", noted, done, n) for n in range(100)]
        results = [call.result() for call in calls]
        if fails:
            raise Undo
        return results

    with pytest.raises(Undo):
        run(lambda task: body(task, fails=True))

    assert run(lambda task: body(task, fails=False)) == [n * n for n in range(100)]
    assert sorted(done) == list(range(100))


def test_one_name_in_two_threads_at_once_runs_once_and_is_an_error(run: Any) -> None:
    done: list[int] = []
    together = threading.Barrier(2)

    def body(task: Any) -> list[str]:
        step = task.step

        def either() -> Any:
            together.wait(DEADLINE_S)
            return step("same", noted, done, 3)

        with ThreadPoolExecutor(2) as threads:
            calls = [threads.submit(either) for _ in range(2)]
        return sorted(str(call.exception() or call.result()) for call in calls)

    result, error = run(body)

    assert result == "9"
    assert "used twice in one run" in error
    assert done == [3]


def test_self_step_in_a_foreign_thread_says_what_to_do(run: Any) -> None:
    """Celery's request is the thread's own: another one has none, and so no key and no record."""

    def body(task: Any) -> Any:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(lambda: task.step("a", noted, [], 1)).result()

    with pytest.raises(StepMisused, match=r"step = self\.step"):
        run(body)


def noted(done: list[int], n: int) -> int:
    done.append(n)
    return n * n
