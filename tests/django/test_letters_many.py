"""100,000 letters: what the admin and the commands read comes from an index, in its order.

The databases' own plans are looked at, not the clock.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections

from celery_idem.deadletters import codec
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import use_letters
from celery_idem.deadletters.letter import Reason, State
from celery_idem.django import letters_rows as rows
from celery_idem.django.letters import DjangoLetterStore
from celery_idem.django.letters_where import condition
from tests.deadletters.examples import letter
from tests.django import databases
from tests.django.test_admin import logged_in, pages_tell_their_context

__all__ = ["pages_tell_their_context"]

MANY = 100_000
LIST = "/admin/celery_idem/deadletter/"

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

#: column → its value for the letter of number ``i``, as SQLite and PostgreSQL read it
_COLUMNS = {
    "id": "'n' || CAST(i AS TEXT)",
    "position": "1750000000000000 + CAST(i AS BIGINT) * 1000",
    "task": "'shop.task' || CAST(i %% 7 AS TEXT)",
    "lane": "CASE i %% 3 WHEN 0 THEN 'critical' WHEN 1 THEN 'normal' ELSE 'low' END",
    "queue": "CASE i %% 3 WHEN 0 THEN 'critical' WHEN 1 THEN 'normal' ELSE 'low' END",
    "key": "'shop.task3:order:' || CAST(i AS TEXT)",
    "group": "'group' || CAST(i %% 4 AS TEXT)",
    "reason": "CASE i %% 10 WHEN 0 THEN 'poison' ELSE 'failure' END",
    "state": "CASE i %% 2500 WHEN 0 THEN 'edited' ELSE 'new' END",
    "rests": "'new'",
    "searched": "'gateway down'",
    "data": "%s",
    "body": "%s",
    "history": "''",
    "times": "1",
    "first_died_ms": "1750000000000 + i",
    "last_died_ms": "1750000000000 + i",
    "holder": "''",
    "held_until_ms": "0",
    "token": "''",
    "version": "1",
}


def fill(alias: str) -> None:
    """Many letters, and what the planner must know of them."""
    kept, quote = letter(1), connections[alias].ops.quote_name
    names = ", ".join(quote(name) for name in _COLUMNS)
    sql = (
        f"INSERT INTO idem_letter ({names}) WITH RECURSIVE n(i) AS "
        f"(SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY - 1}) "
        f"SELECT {', '.join(_COLUMNS.values())} FROM n"
    )
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, [codec.dump_letter(kept), kept.message.body])
        analyze = "VACUUM ANALYZE" if connections[alias].vendor == "postgresql" else "ANALYZE"
        cursor.execute(f"{analyze} idem_letter")


#: SQLite's name of the index that holds positions apart
OF_SQLITE = {"position": "sqlite_autoindex_idem_letter_2"}


class Plans:
    """The plans of the statements that run inside the block on a connection: Django's own."""

    def __init__(self, alias: str, connection: Any = None) -> None:
        self._alias = alias
        self._connection = connection or connections[alias]
        self.said: list[tuple[str, Any]] = []

    def __enter__(self) -> Plans:
        self._wrapped = self._connection.execute_wrapper(self._note)
        self._wrapped.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._wrapped.__exit__(*exc)

    def _note(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(("SELECT", "UPDATE", "DELETE")):
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


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (Filter(), "idem_letter_group"),
        (Filter(since_ms=1_750_000_050_000), ""),
        (Filter(task="shop.task3"), "idem_letter_task"),
        (Filter(task="shop.task3", since_ms=1_750_000_050_000), "idem_letter_task"),
    ],
)
def test_faults_are_counted_in_an_index_alone(filled: str, wanted: Filter, index: str) -> None:
    connection = connections[filled]

    with Plans(filled) as plans:
        tallies = rows.tally(connection, *condition(connection, wanted, died=False))

    assert len(tallies) == 4
    [plan] = plans.explained()
    if filled == "sqlite" and wanted == Filter(task="shop.task3"):
        assert not reads_or_sorts_all(plan)  # it takes the groups' order for the better bargain
        return
    assert index in plan
    assert "COVERING" in plan or "Index Only Scan" in plan, plan


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
    connection, one_of_them = connections[filled], "n7"

    with Plans(filled) as plans:
        assert rows.look(connection, one_of_them).row
        assert rows.of_ids(connection, [one_of_them, "n8"])
        assert rows.hold(connection, one_of_them, "ann", 1)
        assert rows.let_go(connection, one_of_them, "ann")

    for plan in plans.explained():
        assert not reads_or_sorts_all(plan), plan


@pytest.fixture
def store(filled: str, load_app: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The letters of the current app."""
    databases.as_default(filled, {}, monkeypatch)
    app = load_app("tests.apps.letters", TEST_BROKER=redis_url, TEST_IDEM="{}", TEST_DJANGO="1").app
    store = DjangoLetterStore()
    use_letters(app, store)
    yield store
    store.close()


@pytest.mark.parametrize(
    "address",
    ["", "?after=1750000050000000", "?task=shop.task3", "?reason=poison&task=shop.task3&queue=low",
     "?state=edited", "?group=group2", "?key=shop.task3:order:77", "?age=1d", "?q=gateway",
     "n77/change/"],
)  # fmt: skip
def test_a_page_of_the_admin_counts_nothing_and_reads_no_table(store: Any, address: str) -> None:
    browser = logged_in("operator", "view_deadletter", "replay_deadletter")

    with store._connections._taken() as connection:
        pass  # it is the one that the next call takes
    with Plans("default", connection) as plans:
        assert browser.get(LIST + address).status_code == 200

    assert plans.said
    assert all("COUNT(" not in sql for sql, _ in plans.said)
    for plan in plans.explained():
        assert "key=" in address or not reads_or_sorts_all(plan), plan


def test_the_page_of_faults_counts_them_in_an_index(store: Any) -> None:
    browser = logged_in("operator", "view_deadletter")

    with store._connections._taken() as connection:
        pass
    with Plans("default", connection) as plans:
        page = browser.get(f"{LIST}groups/").content.decode()

    assert "100000 letters, 4 faults." in page
    tally, _ = plans.explained()
    assert "COVERING INDEX idem_letter_group" in tally or "Index Only Scan" in tally
