"""Transactional steps in one process: every way to use one, and to misuse one (S-V8)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from django.db import connections, transaction

from celery_idem import IdempotentTask, StepMisused
from celery_idem.binding import binding_of
from celery_idem.core.errors import StepBusy, StepError
from celery_idem.stores.memory import MemoryStore
from tests.django import databases
from tests.django.databases import ALL
from tests.django.shop.models import Effect

pytestmark = pytest.mark.parametrize("database", ALL, indirect=True)


class Undo(Exception):
    """Rolls back what is around it."""


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("inbox", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_always_eager=True, task_eager_propagates=True)
    binding_of(app).use(MemoryStore())
    yield app
    app.close()


@pytest.fixture
def job(app: Celery) -> Callable[..., Any]:
    """``job(body, key)``: run the body as an idempotent task of that key; the run's error is
    raised."""

    def run(body: Callable[[Any], Any], key: str = "1") -> Any:
        the_task._body = body
        return the_task.apply((key,)).get()

    the_task = new_task(app, "inbox.job", lambda self, key: self._body(self), idem_key="{key}")
    run.app = app  # type: ignore[attr-defined]
    return run


def new_task(app: Celery, name: str, body: Callable[..., Any], **options: Any) -> Any:
    """A task of this app alone: ``@app.task`` would register it with every app to come."""

    class Job(IdempotentTask):
        run = body

    Job.name = name
    for option, value in options.items():
        setattr(Job, option, value)
    return app.register_task(Job())


def effects(alias: str) -> list[str]:
    return list(Effect.objects.using(alias).order_by("pk").values_list("note", flat=True))


def test_the_effect_and_its_record_are_there_together(job: Any, database: str) -> None:
    def body(task: Any) -> Any:
        return task.step.transaction("note", note, database, "a", using=database)

    assert job(body) == "a noted"

    entry = databases.entries(database).get()
    assert (entry.key, entry.name) == ("inbox.job:1", "note")
    assert effects(database) == ["a"]
    assert store_steps(job) == {"note"}


def test_a_step_that_raises_leaves_neither(job: Any, database: str) -> None:
    def fails(task: Any) -> None:
        task.step.transaction("note", note_and_raise, database, using=database)

    def works(task: Any) -> Any:
        return task.step.transaction("note", note_and_raise, database, False, using=database)

    with pytest.raises(Undo):
        job(fails)
    assert (effects(database), databases.entries(database).count()) == ([], 0)

    assert job(works) is None
    assert effects(database) == ["b"]


def test_a_record_that_was_lost_after_the_commit_is_found_in_the_inbox(
    job: Any, app: Celery, database: str
) -> None:
    """A crash between the commit and the note in the record; a flushed store."""

    def body(task: Any) -> Any:
        return task.step.transaction("note", note, database, "a", using=database)

    job(body)
    binding_of(app).use(MemoryStore())

    assert job(body) == "a noted"
    assert effects(database) == ["a"]


def test_inside_atomic_a_step_is_done_when_the_outermost_one_commits(
    job: Any, database: str
) -> None:
    def body(task: Any) -> Any:
        with transaction.atomic(using=database):
            value = task.step.transaction("note", note, database, "a", using=database)
            assert not task.step.done("note")
        assert task.step.done("note")
        return value

    assert job(body) == "a noted"
    assert effects(database) == ["a"]


def test_inside_atomic_that_rolls_back_a_step_is_not_done(job: Any, database: str) -> None:
    def undone(task: Any) -> None:
        with transaction.atomic(using=database):
            task.step.transaction("note", note, database, "a", using=database)
            raise Undo

    def body(task: Any) -> Any:
        return task.step.transaction("note", note, database, "a", using=database)

    with pytest.raises(Undo):
        job(undone)
    assert (effects(database), databases.entries(database).count()) == ([], 0)

    assert job(body) == "a noted"
    assert effects(database) == ["a"]


def test_a_rollback_that_nobody_hears_of_is_an_error(job: Any, database: str) -> None:
    def body(task: Any) -> None:
        def effect() -> None:
            note(database, "a")
            transaction.set_rollback(True, using=database)

        task.step.transaction("note", effect, using=database)

    with pytest.raises(StepMisused, match="marked its transaction for rollback"):
        job(body)
    assert (effects(database), databases.entries(database).count()) == ([], 0)


def test_a_write_to_another_database_is_an_error_and_undoes_the_step(
    job: Any, database: str, django_databases: Any
) -> None:
    other = django_databases("other")

    def body(task: Any) -> None:
        def both() -> None:
            note(database, "a")
            note(other, "elsewhere")

        task.step.transaction("note", both, using=database)

    with pytest.raises(StepMisused, match=r"wrote to 'other', which is in none"):
        job(body)
    assert (effects(database), effects(other)) == ([], [])


def test_a_write_to_another_database_can_be_meant(
    job: Any, database: str, django_databases: Any
) -> None:
    other = django_databases("other")
    databases.emptied(other)

    def body(task: Any) -> None:
        def both() -> None:
            note(database, "a")
            note(other, "elsewhere")

        task.step.transaction("note", both, using=database, writes_too=("other",))

    job(body)
    assert (effects(database), effects(other)) == (["a"], ["elsewhere"])


def test_reading_another_database_is_allowed(
    job: Any, database: str, django_databases: Any
) -> None:
    other = django_databases("other")
    databases.emptied(other)

    def body(task: Any) -> Any:
        return task.step.transaction("count", Effect.objects.using(other).count, using=database)

    assert job(body) == 0


def test_a_with_block_is_refused_because_its_body_could_not_be_skipped(
    job: Any, database: str
) -> None:
    def body(task: Any) -> None:
        with task.step.transaction("note", using=database):
            note(database, "a")

    with pytest.raises(StepMisused, match="no with block"):
        job(body)
    assert effects(database) == []


def test_another_function_under_the_same_name_is_an_error_that_names_both(
    job: Any, app: Celery, database: str
) -> None:
    def first(task: Any) -> None:
        task.step.transaction("note", note, database, "a", using=database)
        raise Undo

    def second(task: Any) -> None:
        task.step.transaction("note", note_and_raise, database, False, using=database)

    with pytest.raises(Undo):
        job(first)
    binding_of(app).use(MemoryStore())  # the inbox alone remembers

    with pytest.raises(StepMisused, match=r"test_inbox\.note .*test_inbox\.note_and_raise"):
        job(second)


def test_a_plain_step_inside_an_open_transaction_is_an_error(job: Any, database: str) -> None:
    """Rolled back, it would stay recorded as done although its effect is undone."""

    def body(task: Any) -> None:
        with transaction.atomic(using=database):
            task.step("note", note, database, "a")

    with pytest.raises(StepMisused, match="inside an open transaction"):
        job(body)
    assert effects(database) == []


def test_hooks_on_commit_fire_once_and_not_on_replay(job: Any, app: Celery, database: str) -> None:
    fired = []

    def body(task: Any) -> None:
        def effect() -> None:
            note(database, "a")
            transaction.on_commit(lambda: fired.append("hook"), using=database)

        task.step.transaction("note", effect, using=database)
        raise Undo

    for _ in range(3):
        with pytest.raises(Undo):
            job(body)
    binding_of(app).use(MemoryStore())
    with pytest.raises(Undo):
        job(body)

    assert fired == ["hook"]


def test_an_entry_past_its_retention_does_not_stop_new_work(
    job: Any, app: Celery, database: str
) -> None:
    def body(task: Any) -> Any:
        return task.step.transaction("note", note, database, "a", using=database)

    job(body)
    binding_of(app).use(MemoryStore())
    databases.entries(database).update(expires_ms=1)

    job(body)

    assert effects(database) == ["a", "a"]
    assert databases.entries(database).get().expires_ms > 1


def test_a_direct_call_runs_in_a_transaction_and_keeps_no_record(
    app: Celery, database: str
) -> None:
    task = new_task(
        app,
        "inbox.direct",
        lambda self: self.step.transaction("note", note, database, "a", using=database),
    )

    assert task() == "a noted"
    assert (effects(database), databases.entries(database).count()) == (["a"], 0)


def test_two_runs_at_once_have_the_effect_once(job: Any, database: str) -> None:
    """Two holders, of which one has lost its lease: the second waits for the first at the entry."""
    if database == "sqlite":
        return  # one writer: nobody is ever inside beside another
    assert two_runs_at_once(database) == ["first", "first"]
    assert effects(database) == ["a"]


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_under_a_strict_isolation_the_second_run_comes_back(
    database: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL refuses it there, and its work is no failure: the first has done it."""
    if database != "postgres":
        return
    from psycopg import IsolationLevel

    options = connections[database].settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "isolation_level", IsolationLevel[level])

    first, second = two_runs_at_once(database)

    assert first == "first"
    assert isinstance(second, StepBusy)
    assert effects(database) == ["a"]


def two_runs_at_once(database: str) -> list[Any]:
    """What the two of them got: the second begins while the first is inside the step."""
    from celery_idem.core.record import Claim
    from celery_idem.django.inbox import InboxStep, run_step

    inside, go_on = threading.Event(), threading.Event()
    got: dict[int, Any] = {}

    def step(call: Callable[[], Any]) -> InboxStep:
        return InboxStep(
            "note",
            database,
            (),
            True,
            call,
            lambda v: (v.encode(), v),
            bytes.decode,
            lambda _: None,
        )

    def slow() -> str:
        note(database, "a")
        inside.set()
        assert go_on.wait(30)
        return "first"

    def run(call: Callable[[], Any], fence: int) -> None:
        try:
            got[fence] = run_step(step(call), Claim("k", f"w{fence}", fence, 30_000, 3_600_000))
        except StepBusy as busy:
            got[fence] = busy
        finally:
            connections.close_all()

    first = threading.Thread(target=run, args=(slow, 1))
    second = threading.Thread(target=run, args=(lambda: note(database, "b"), 2))
    first.start()
    assert inside.wait(30)
    second.start()
    databases.wait_until_blocked(database)
    go_on.set()
    first.join(60)
    second.join(60)
    return [got[1], got[2]]


def test_misuse_is_one_family_of_errors(database: str) -> None:
    assert issubclass(StepMisused, StepError)


def note(alias: str, text: str) -> str:
    Effect.objects.using(alias).create(name="note", note=text)
    return f"{text} noted"


def note_and_raise(alias: str, raises: bool = True) -> None:
    note(alias, "b")
    if raises:
        raise Undo


def store_steps(job: Any) -> set[str]:
    record = binding_of(job.app).store.get("inbox.job:1")
    assert record is not None
    return set(record.steps)
