"""Letters in the project's database: real workers, open transactions, lost connections, plans."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, transaction

from celery_idem.core.errors import StoreUnavailable
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.django.letters import DjangoLetterStore
from celery_idem.django.models import DeadLetter, DeadLetterTrail
from tests.deadletters.examples import letter
from tests.django import databases
from tests.django.databases import ALL, SERVERS
from tests.django.shop.models import Effect
from tests.support.effects import Effects
from tests.support.waiting import wait_until

DEADLINE_S = 90
APP = "tests.django.jobs:app"


@pytest.fixture
def store(database: str) -> Any:
    store = DjangoLetterStore(database, patience_s=10)
    yield store
    store.close()


class Undo(Exception):
    pass


@pytest.mark.parametrize("database", ALL, indirect=True)
@pytest.mark.parametrize("records", ["django", "tiered"])
def test_a_worker_keeps_its_letters_in_the_database_without_being_told(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any, plan: Any, records: str
) -> None:
    """S-F2, S-F3: fails for good, is looked at and sent again with ``manage.py dlq``, is done."""
    jobs = shop(redis_url, store=records)
    plan("before:email:7", "fail 9")
    start_worker(APP, concurrency=1)
    sent = jobs.order.delay("7")

    row = wait_until(lambda: DeadLetter.objects.first(), DEADLINE_S, "the letter")
    assert type(letters_of(jobs.app)) is DjangoLetterStore
    assert (row.task, row.reason, row.state) == ("shop.order", "retries_exhausted", "new")
    call_command("dlq", "replay", row.id)

    # Asked anew each time: a result object keeps the failure that it saw first.
    wait_until(
        lambda: jobs.app.AsyncResult(sent.id).state == "SUCCESS", DEADLINE_S, "the second end"
    )
    assert [effects.count(f"{name}:7") for name in ("email", "stock")] == [1, 1]
    assert Effect.objects.filter(name="order:7").count() == 2  # the step that was done, once
    assert not DeadLetter.objects.exists()
    assert DeadLetterTrail.objects.get().id == row.id


@pytest.mark.parametrize("database", SERVERS, indirect=True)
def test_a_letter_commits_whatever_transaction_is_open_around_it(
    store: DjangoLetterStore, database: str
) -> None:
    """A task that fails inside ``atomic`` takes its effects back, and not its letter."""

    def fail() -> None:
        with transaction.atomic(using=database):
            Effect.objects.using(database).create(name="undone")
            store.put(letter(1))
            raise Undo

    with pytest.raises(Undo):
        fail()
    assert Effect.objects.using(database).count() == 0
    assert store.count(Filter()) == 1


def test_on_sqlite_a_letter_inside_a_transaction_is_refused_and_the_message_kept(
    store: DjangoLetterStore, database: str
) -> None:
    with transaction.atomic(using=database):
        Effect.objects.using(database).create(name="holds the lock")
        with pytest.raises(StoreUnavailable, match="SQLite has one writer"):
            store.put(letter(1))


@pytest.mark.parametrize("database", SERVERS, indirect=True)
def test_a_connection_that_the_server_ends_is_replaced(
    store: DjangoLetterStore, database: str
) -> None:
    store.put(letter(1))

    assert databases.cut_connections(database)

    assert store.put(letter(2)).times == 1
    assert store.count(Filter()) == 2


def test_without_its_table_the_error_says_what_to_do(database: str) -> None:
    with connections[database].schema_editor() as editor:
        editor.delete_model(DeadLetter)
    try:
        with pytest.raises(StoreUnavailable, match=r"manage.py migrate celery_idem"):
            DjangoLetterStore(database, patience_s=0).put(letter(1))
    finally:
        with connections[database].schema_editor() as editor:
            editor.create_model(DeadLetter)


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_trails_go_when_their_time_is_over(store: DjangoLetterStore, database: str) -> None:
    for number in range(3):
        store.delete(store.put(letter(number)).id, sent=True)
    trails = DeadLetterTrail.objects.using(database)
    trails.filter(id__in=[letter(0).id, letter(1).id]).update(expires_ms=1)

    assert store.trail(letter(0).id) == ()
    assert store.put(letter(1)).times == 1  # too long ago to be the same story
    store.delete(letter(1).id, sent=True)

    assert {it.id for it in trails.all()} == {letter(1).id, letter(2).id}
