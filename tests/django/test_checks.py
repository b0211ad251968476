"""What ``manage.py check`` says, with its ids."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from celery import Celery, _state, current_app
from celery.loaders.app import AppLoader
from django.db import connections

from celery_idem import IdempotentTask
from celery_idem.binding import Binding
from celery_idem.django import checks
from celery_idem.django.store import DjangoStore
from celery_idem.doctor.finding import Check, Severity
from tests.conformance.asking import ask
from tests.django import databases
from tests.django.databases import POSTGRES, as_default
from tests.support.apps import current_app_kept

#: Django can be told how SQLite's transactions begin.
TOLD_HOW_TO_BEGIN = django.VERSION >= (5, 1)


@pytest.fixture(autouse=True)
def nobodys_app() -> Iterator[None]:
    """The current app is the one that Celery makes up where a project has none."""
    with current_app_kept():
        _state._set_current_app(None)
        _state.set_default_app(None)
        yield


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, database: str) -> Any:
    """``settings(**idem)``: CELERY_IDEM for this test, read afresh."""

    def use(**idem: Any) -> None:
        as_default(database, idem, monkeypatch)
        app = current_app._get_current_object()  # type: ignore[attr-defined]
        monkeypatch.setitem(app.__dict__, "_celery_idem_binding", Binding(app))
        monkeypatch.delitem(app.__dict__, "_celery_idem_letters", raising=False)

    return use


def settings_said() -> list[Any]:
    """What is said of CELERY_IDEM itself; what tasks of other tests get is left out."""
    said = (*checks.check_project(), *checks.check_store())
    return [it for it in said if it.id == "celery_idem.IDEM001" or ".IDEM" not in it.id]


class ImportsNothing(AppLoader):
    """Importing a project's tasks lets Django check all databases, of which few are there."""

    def import_default_modules(self) -> list[Any]:
        return []


def ids(messages: list[Any]) -> list[str]:
    return [message.id for message in messages]


def test_good_settings_say_nothing(settings: Any) -> None:
    settings(store="redis://localhost:6379/0", lease_s=10)

    assert settings_said() == []


def test_an_unknown_setting_is_an_error_with_the_nearest_right_one(settings: Any) -> None:
    settings(leese_s=10)

    (message,) = settings_said()

    assert message.id == "celery_idem.IDEM001"
    assert "did you mean 'lease_s'?" in message.msg
    assert message.hint


def test_an_ill_typed_setting_is_an_error(settings: Any) -> None:
    settings(lease_s="long")

    assert ids(settings_said()) == ["celery_idem.IDEM001"]


@pytest.mark.parametrize(
    ("idem", "says"),
    [
        ({"store": "mongo"}, "store 'mongo' is unknown; allowed are a Redis URL"),
        ({"store": "redis-streams://h/0"}, "redis-streams://… is redis://… for a store"),
        ({"dead_letters": {"store": "redis-streams://h/0"}}, "is redis://… for a store"),
        ({"lanes": {"critical": "x"}}, "critical"),
        ({"dead_letters": {"stor": "x"}}, "did you mean 'store'?"),
        ({"dead_letters": {"store": "nowhere"}}, "'nowhere'"),
    ],
)
def test_what_a_worker_would_refuse_is_an_error(settings: Any, idem: Any, says: str) -> None:
    settings(**{"store": "memory", **idem})

    (message,) = settings_said()

    assert message.id == "celery_idem.IDEM001"
    assert says in message.msg


def test_a_store_that_is_wrong_is_named_without_its_password(settings: Any) -> None:
    settings(store="redis-streams://:s3@cret@h:6379/0")

    (message,) = settings_said()

    assert "redis-streams://:***@h:6379/0" in message.msg
    assert "cret" not in f"{message}{message.hint}"


def test_a_wrong_setting_is_said_once_and_not_for_every_task(settings: Any) -> None:
    settings(leese_s=10)

    said = [it for it in checks.check_project() if "leese_s" in it.msg]

    assert ids(said) == ["celery_idem.IDEM001"]


@pytest.mark.parametrize(
    ("idem", "kept"),
    [
        ({"store": "django"}, "records and dead letters"),
        ({"store": "tiered", "dead_letters": {"store": "memory"}}, "records"),
        ({"store": "memory", "dead_letters": {"store": "django"}}, "dead letters"),
    ],
)
def test_sqlite_as_a_store_is_a_warning_that_says_of_what(
    settings: Any, monkeypatch: pytest.MonkeyPatch, idem: Any, kept: str
) -> None:
    monkeypatch.setattr(current_app.conf, "result_backend", "redis://localhost:6379/0")
    settings(**idem)
    if TOLD_HOW_TO_BEGIN:
        options = {"transaction_mode": "IMMEDIATE"}
        monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)

    (message,) = settings_said()

    assert message.id == "celery_idem.W001"
    assert message.msg.startswith(f"{kept} are kept in SQLite")


@pytest.mark.parametrize(
    "options", [{}, {"transaction_mode": None}, {"transaction_mode": "DEFERRED"}]
)
def test_on_sqlite_transactions_that_begin_without_the_lock_are_a_warning(
    settings: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    settings(store="django")
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)

    where_it_helps = ["celery_idem.W003"] if TOLD_HOW_TO_BEGIN else []
    assert ids(settings_said()) == ["celery_idem.W001", *where_it_helps]


@pytest.mark.parametrize("mode", ["DEFERRED", "IMMEDIATE"])
def test_a_transaction_that_reads_and_then_writes_beside_the_store_fails_unless_it_takes_the_lock(
    database: str, mode: str
) -> None:
    """What W003 warns of; the store has committed between the two."""
    file = connections[database].settings_dict["NAME"]
    with contextlib.closing(sqlite3.connect(file, isolation_level=None, timeout=0)) as project:
        project.execute("PRAGMA journal_mode = WAL")
        try:
            project.execute(f"BEGIN {mode}")
            project.execute("SELECT count(*) FROM idem_record").fetchone()
            store = DjangoStore(database, patience_s=0)
            if mode == "DEFERRED":
                store.claim(ask())
                with pytest.raises(sqlite3.OperationalError, match="database is locked"):
                    project.execute("DELETE FROM idem_record")
            else:
                project.execute("DELETE FROM idem_record")
                project.execute("COMMIT")
                store.claim(ask())
            store.close()
        finally:
            if project.in_transaction:
                project.execute("ROLLBACK")
            project.execute("PRAGMA journal_mode = DELETE")


@pytest.mark.parametrize("database", [POSTGRES], indirect=True)
def test_postgresql_as_the_store_says_nothing(settings: Any) -> None:
    settings(store="django")

    assert settings_said() == []


def test_missing_tables_are_an_error_with_the_command(tmp_path: Any, settings: Any) -> None:
    settings(store="django")
    assert checks.check_tables(databases=["default"]) == []


def test_missing_tables_are_named(
    tmp_path: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alias = databases.alias_of(f"sqlite:///{tmp_path}/empty.sqlite3")
    as_default(alias, {}, monkeypatch)

    (message,) = checks.check_tables(databases=["default"])

    assert message.id == "celery_idem.E004"
    for table in ("idem_record", "idem_step", "idem_inbox", "idem_letter"):
        assert table in message.msg
    assert "migrate celery_idem" in message.hint


def test_a_retention_shorter_than_twice_the_retry_window_is_an_error_with_the_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Celery("checked", broker="memory://", set_as_current=False)
    app.loader = ImportsNothing(app)

    class Short(IdempotentTask):
        name = "checked.short"
        idem_key = "{order_id}"
        retention_s = 60
        max_retries = 8

        def run(self, order_id: int) -> None: ...

    app.register_task(Short())
    monkeypatch.setattr(checks, "current_app", app)

    messages = {m.id: m for m in checks.check_project() if m.obj == "checked.short"}

    # the other: nothing ends a body that hangs
    assert messages.keys() == {"celery_idem.IDEM002", "celery_idem.IDEM014"}
    assert "retention 60 s" in messages["celery_idem.IDEM002"].msg
    assert messages["celery_idem.IDEM002"].hint == f"retention_s={2 * (8 * 180 + 3600)}"


def test_checks_that_could_not_be_made_are_said_with_their_reason(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> list[Any]:
        raise AttributeError("'str' object has no attribute 'name'")

    settings(store="memory")
    two = [Check(f"IDEM99{n}", "fails", Severity.INFO, fails) for n in (1, 2)]
    monkeypatch.setattr(checks, "CHECKS", two)

    (message,) = checks.check_project()

    assert message.id == "celery_idem.W004"
    assert message.msg.startswith("not checked: IDEM991, IDEM992: the check itself failed")
    assert message.hint == "manage.py idem check --only IDEM991 --only IDEM992"


def test_a_missing_table_does_not_keep_migrate_from_making_it(
    tmp_path: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``migrate`` runs the checks of its database first, as a newcomer's first command does."""
    from django.core.management import call_command

    alias = databases.alias_of(f"sqlite:///{tmp_path}/new.sqlite3")
    as_default(alias, {}, monkeypatch)

    call_command("migrate", "celery_idem", skip_checks=False, verbosity=0)

    assert checks.check_tables(databases=["default"]) == []


def test_every_check_is_in_the_guide() -> None:
    """The table of ids in the module's docstring, and the one for users."""
    guide = (Path(checks.__file__).parents[2] / "docs" / "django.md").read_text()

    ids_in_code = set(re.findall(r"celery_idem\.[EW]\d+", Path(checks.__file__).read_text()))

    assert ids_in_code
    assert {i for i in ids_in_code if f"`{i}`" not in guide} == set()
