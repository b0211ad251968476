"""Letters in the project's database: real workers, open transactions, lost connections, plans."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, transaction

from celery_idem.core.errors import StoreUnavailable
from celery_idem.deadletters import codec
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Reason, State
from celery_idem.django import letters_rows as rows
from celery_idem.django.letters import DjangoLetterStore
from celery_idem.django.letters_where import condition
from celery_idem.django.models import DeadLetter, DeadLetterTrail
from tests.deadletters.examples import letter
from tests.django import databases
from tests.django.shop.models import Effect
from tests.support.effects import Effects
from tests.support.waiting import wait_until

DEADLINE_S = 90
APP = "tests.django.jobs:app"
SERVERS = [
    pytest.param(alias, marks=databases.MARKS[alias], id=alias) for alias in ("postgres", "mariadb")
]
ALL = ["sqlite", *SERVERS]


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


# --- plans -----------------------------------------------------------------------------------

MANY = 20_000
#: what is asked, the index that answers, how many of a page it has
FILTERS = {
    "all": (Filter(), "position", 50),
    "task": (Filter(task="shop.task3"), "idem_letter_task", 50),
    "lane": (Filter(lane="low"), "idem_letter_lane", 50),
    "queue": (Filter(queue="normal"), "idem_letter_queue", 50),
    "reason": (Filter(reason=Reason.POISON), "idem_letter_reason", 50),
    "state": (Filter(state=State.EDITED), "idem_letter_state", 40),
    "group": (Filter(group="group2"), "idem_letter_group", 50),
    "key": (Filter(key="shop.task3:order:3"), "idem_letter_key", 1),
    "text": (Filter(text="gateway"), "position", 50),
    "nothing": (Filter(task="nobody"), "idem_letter_task", 0),
}


def fill(alias: str) -> None:
    """Many letters, without their weight, and what the planner must know of them."""
    data = codec.dump_letter(letter(1))
    DeadLetter.objects.using(alias).bulk_create(
        (
            DeadLetter(
                id=f"{number:020x}", position=1_750_000_000_000_000 + number * 1000,
                task=f"shop.task{number % 7}", lane=("critical", "normal", "low")[number % 3],
                queue=("critical", "normal", "low")[number % 3], key=f"shop.task3:order:{number}",
                group=f"group{number % 4}", reason="poison" if number % 10 == 0 else "failure",
                state="edited" if number % 500 == 0 else "new", rests="new", data=data, body=b"",
                searched=f"shop.task{number % 7}\ngateway down", history="", times=1,
                first_died_ms=1_750_000_000_000 + number, last_died_ms=1_750_000_000_000 + number,
                holder="", held_until_ms=0, token="", version=1,
            )
            for number in range(MANY)
        ),
        batch_size=2000,
    )  # fmt: skip
    with connections[alias].cursor() as cursor:
        analyze = "VACUUM ANALYZE" if connections[alias].vendor == "postgresql" else "ANALYZE"
        cursor.execute(f"{analyze} idem_letter")


#: SQLite's name of the index that holds positions apart
OF_SQLITE = {"position": "sqlite_autoindex_idem_letter_2"}


class Plans:
    """The plans of the statements that run inside the block on Django's own connection."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self.said: list[tuple[str, Any]] = []

    def __enter__(self) -> Plans:
        self._wrapped = connections[self._alias].execute_wrapper(self._note)
        self._wrapped.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._wrapped.__exit__(*exc)

    def _note(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.said.append((sql, params))
        return execute(sql, params, many, context)

    def explained(self) -> list[str]:
        """One text a statement."""
        connection = connections[self._alias]
        verb = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
        found = []
        with connection.cursor() as cursor:
            for sql, params in self.said:
                cursor.execute(f"{verb} {sql}", params)
                found.append("\n".join(str(line) for line in cursor.fetchall()))
        return found


def reads_or_sorts_all(plan: str) -> bool:
    """Whether the plan goes through the table, or sorts what it found."""
    scans = any("SCAN idem_letter" in line and "USING" not in line for line in plan.splitlines())
    return scans or "Seq Scan" in plan or "TEMP B-TREE" in plan or "Sort" in plan


PLANNED = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="module", params=PLANNED)
def filled(request: pytest.FixtureRequest, django_databases: Any) -> str:
    alias = django_databases(request.param)
    databases.emptied(alias)
    fill(alias)
    return str(alias)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("order", ["DESC", "ASC"])
def test_a_page_of_every_filter_is_read_from_an_index_in_its_order(
    filled: str, name: str, order: str
) -> None:
    """As ``list`` and the admin read them, and as a walk does."""
    wanted, index, count = FILTERS[name]
    connection = connections[filled]

    with Plans(filled) as plans:
        found = rows.letters(connection, *condition(connection, wanted), order, 50)

    assert len(found) == count
    [plan] = plans.explained()
    assert OF_SQLITE.get(index, index) in plan if filled == "sqlite" else index in plan
    if name != "key":  # a key has few letters: they are sorted
        assert not reads_or_sorts_all(plan), plan


def test_groups_and_values_are_read_from_an_index_alone(filled: str) -> None:
    connection = connections[filled]

    with Plans(filled) as plans:
        tallies = rows.tally(connection, *condition(connection, Filter()))
        examples = rows.at_positions(connection, [last for _, _, last in tallies])
        first = rows.next_value(connection, "task", "")
        assert rows.next_value(connection, "task", first or "") == "shop.task1"
        assert rows.last_position(connection) == max(examples)

    assert [count for count, _, _ in tallies] == [MANY / 4] * 4
    assert len(examples) == 4
    groups, of_positions, *others = plans.explained()
    assert "idem_letter_group" in groups
    assert "COVERING" in groups or "Index Only Scan" in groups
    for plan in (of_positions, *others):
        assert not reads_or_sorts_all(plan), plan


def test_what_is_asked_about_one_letter_is_asked_by_its_id(filled: str) -> None:
    connection, one_of_them = connections[filled], f"{7:020x}"

    with Plans(filled) as plans:
        assert rows.look(connection, one_of_them).row
        assert rows.of_ids(connection, [one_of_them, f"{8:020x}"])
        assert rows.hold(connection, one_of_them, "ann", 1)
        assert rows.let_go(connection, one_of_them, "ann")

    for plan in plans.explained():
        assert not reads_or_sorts_all(plan), plan
