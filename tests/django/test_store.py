"""What the Django store promises beside the contract: connections, transactions, pruning (S-I6)."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from django.db import connections, transaction

from celery_idem.core.errors import ConfigError, StoreUnavailable
from celery_idem.core.record import Claimed, Done, State
from celery_idem.django.store import DjangoStore
from tests.conformance.asking import KEY, RESULT, ask, take
from tests.django import databases
from tests.django.databases import ALL, SERVERS
from tests.django.shop.models import Effect


@pytest.fixture
def store(database: str) -> Any:
    store = DjangoStore(database, patience_s=10)
    yield store
    store.close()


class Undo(Exception):
    pass


@pytest.mark.parametrize("database", SERVERS, indirect=True)
def test_a_claim_commits_whatever_transaction_is_open_around_it(
    store: DjangoStore, database: str
) -> None:
    seen = []

    def claim_and_undo() -> None:
        with transaction.atomic(using=database):
            Effect.objects.using(database).create(name="undone")
            take(store)
            seen.append(DjangoStore(database).get(KEY))  # on another connection
            raise Undo

    with pytest.raises(Undo):
        claim_and_undo()
    assert seen[0] is not None
    assert Effect.objects.using(database).count() == 0
    record = store.get(KEY)
    assert record is not None
    assert record.state is State.RUNNING


def test_on_sqlite_a_claim_inside_a_transaction_is_refused(
    store: DjangoStore, database: str
) -> None:
    """One writer: the claim would wait for a transaction that waits for the claim."""

    def claim_inside() -> None:
        with transaction.atomic(using=database):
            Effect.objects.using(database).create(name="undone")
            store.claim(ask())

    with pytest.raises(StoreUnavailable, match=r"SQLite has one writer, .* in this very thread"):
        claim_inside()


def test_a_database_in_memory_is_refused(database: str) -> None:
    alias = databases.alias_of("sqlite:///:memory:")

    with pytest.raises(ConfigError, match="in-memory SQLite"):
        DjangoStore(alias).claim(ask())


def test_a_missing_table_is_said_with_the_remedy(tmp_path: Any, database: str) -> None:
    alias = databases.alias_of(f"sqlite:///{tmp_path}/empty.sqlite3")

    with pytest.raises(StoreUnavailable, match=r"manage\.py migrate celery_idem"):
        DjangoStore(alias).claim(ask())


@pytest.mark.parametrize("database", SERVERS, indirect=True)
def test_a_connection_lost_in_between_is_opened_again(store: DjangoStore, database: str) -> None:
    claim = take(store)
    assert databases.cut_connections(database) >= 1

    assert store.complete(claim, RESULT) is True
    assert isinstance(store.claim(ask(owner="w2", task_id="t2")), Done)


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_eight_threads_that_ask_at_once_get_one_claim(store: DjangoStore, database: str) -> None:
    ready = threading.Barrier(8)
    granted: list[int] = []

    def claim(n: int) -> None:
        ready.wait(30)
        if isinstance(store.claim(ask(owner=f"w{n}", task_id=f"t{n}")), Claimed):
            granted.append(n)
        connections.close_all()

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(granted) == 1


@pytest.mark.parametrize("database", SERVERS, indirect=True)
def test_a_forked_child_leaves_the_parents_connections_alone(
    store: DjangoStore, database: str
) -> None:
    claim = take(store)
    pid = os.fork()
    if pid == 0:
        ok = store.put_step(claim, "in the child", b"value")
        os._exit(0 if ok else 1)

    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert store.complete(claim, RESULT) is True
    assert store.get(KEY).steps == {"in the child": b"value"}  # type: ignore[union-attr]


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_pruning_deletes_what_is_expired_with_its_steps_and_nothing_else(
    store: DjangoStore, database: str
) -> None:
    from celery_idem.django.models import KeyRecord, KeyStep

    for n in range(25):
        claim = take(store, f"tests:{n}", f"w{n}", task_id=f"t{n}")
        store.put_step(claim, "step", b"value")
        store.complete(claim, RESULT)
    expired = [record.pk for record in KeyRecord.objects.using(database)[:20]]
    KeyRecord.objects.using(database).filter(pk__in=expired).update(expires_ms=1)

    batches = [store.prune(limit=8) for _ in range(4)]

    assert batches == [8, 8, 4, 0]
    assert KeyRecord.objects.using(database).count() == 5
    assert KeyStep.objects.using(database).count() == 5
    assert KeyRecord.objects.using(database).filter(pk__in=expired).count() == 0


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_a_key_that_is_new_work_again_has_no_steps_of_the_old(
    store: DjangoStore, database: str
) -> None:
    from celery_idem.django.models import KeyRecord

    claim = take(store, owner="w1")
    store.put_step(claim, "old", b"value")
    KeyRecord.objects.using(database).update(expires_ms=1)

    again = store.claim(ask(owner="w2", task_id="t2"))

    assert isinstance(again, Claimed)
    assert dict(again.steps) == {}
    store.put_step(again.claim, "new", b"value")
    assert set(store.get(KEY).steps) == {"new"}  # type: ignore[union-attr]


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_a_thousand_steps_come_back_with_the_next_claim(store: DjangoStore, database: str) -> None:
    claim = take(store, owner="w1")
    for n in range(1000):
        assert store.put_step(claim, f"line:{n}", b"%d" % n)
    store.crash(KEY, "w1")

    again = store.claim(ask(owner="w2"))

    assert isinstance(again, Claimed)
    assert dict(again.steps) == {f"line:{n}": b"%d" % n for n in range(1000)}


def test_hashed_keys_are_nowhere_to_be_read(database: str) -> None:
    from celery_idem.django.models import KeyRecord

    store = DjangoStore(database, hash_keys=True)
    claim = take(store, "tests:secret@example.org")
    store.put_step(claim, "step", b"value")

    assert store.complete(claim, RESULT) is True
    assert isinstance(store.claim(ask("tests:secret@example.org", "w2", task_id="t2")), Done)
    assert store.get("tests:secret@example.org").key == "tests:secret@example.org"  # type: ignore[union-attr]
    assert "secret" not in KeyRecord.objects.using(database).get().key
    store.close()


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_the_statements_use_the_primary_key_or_the_index(store: DjangoStore, database: str) -> None:
    """Pruning must not read the whole table."""
    from celery_idem.django.models import KeyRecord

    introspection = connections[database].introspection
    with connections[database].cursor() as cursor:
        found = introspection.get_constraints(cursor, KeyRecord._meta.db_table)

    indexed = {tuple(c["columns"]) for c in found.values() if c["index"] or c["primary_key"]}
    assert indexed == {("digest",), ("expires_ms",)}
