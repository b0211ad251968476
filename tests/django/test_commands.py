"""``celery -A proj idem`` and ``manage.py idem`` are the same commands."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, current_app
from click.testing import CliRunner

from celery_idem import IdempotentTask, idempotent
from celery_idem.binding import binding_of
from celery_idem.cli.idem import idem
from celery_idem.core.record import State
from celery_idem.stores.memory import MemoryStore
from tests.conformance.asking import LONG_MS, RESULT, crash_times, take

KEY = "shop.order:order:1"


@pytest.fixture
def store() -> Any:
    binding = binding_of(current_app)
    before = binding.__dict__.copy()
    binding.use(MemoryStore())
    yield binding.store
    binding.__dict__.update(before)


@pytest.fixture
def said(store: Any) -> Any:
    """``said("show", KEY)``: what the command printed; ``code`` is what it must end with."""

    def run(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(idem, words, obj=SimpleNamespace(app=current_app))
        assert result.exit_code == code, result.output
        return str(result.output)

    return run


def done(store: Any, key: str = KEY) -> None:
    claim = take(store, key)
    store.put_step(claim, "email", b'["done", "shop.send", ""]\n')
    store.complete(claim, RESULT)


def test_show_says_everything_but_the_result(store: Any, said: Any) -> None:
    done(store)

    shown = json.loads(said("show", KEY, "--json"))

    assert (shown["state"], shown["task_id"], shown["runs"]) == ("done", "t1", 1)
    assert shown["result"] == "13 bytes of application/json"
    assert shown["steps"] == {"email": "done (shop.send)"}
    assert "paid" not in said("show", KEY)


def test_show_of_an_unknown_key_names_those_that_are_alike(store: Any, said: Any) -> None:
    done(store)

    assert "there is 'shop.order:order:1'" in said("show", "order:1", code=1)


def test_list_filters_by_task_state_and_text(store: Any, said: Any) -> None:
    done(store)
    take(store, "shop.mail:mail:1")
    crash_times(store, 1, "shop.mail:mail:2")
    store.revoke("shop.mail:mail:3", LONG_MS)

    def keys(*words: str) -> set[str]:
        return {record["key"] for record in json.loads(said("list", *words, "--json"))}

    assert keys("--task", "shop.order") == {KEY}
    assert keys("--state", "running") == {"shop.mail:mail:1"}
    assert keys("--state", "crashed") == {"shop.mail:mail:2"}
    assert keys("--state", "revoked") == {"shop.mail:mail:3"}
    assert keys("--contains", "mail:2") == {"shop.mail:mail:2"}
    assert len(keys("--limit", "2")) == 2


def test_list_as_a_table_has_a_line_a_record(store: Any, said: Any) -> None:
    done(store)

    head, line = said("list").splitlines()

    assert head.split() == [
        "key", "state", "task", "id", "runs", "crashes", "failures", "steps", "expires",
    ]  # fmt: skip
    assert line.split()[:7] == [KEY, "done", "t1", "1", "0", "0", "1"]


def test_release_frees_a_key_and_refuses_a_done_one(store: Any, said: Any) -> None:
    take(store, "shop.mail:mail:1")
    done(store)

    assert "is free" in said("release", "shop.mail:mail:1")
    assert store.get("shop.mail:mail:1").state is State.FREE
    assert "would run again" in said("release", KEY, code=1)


def test_revoke_and_release_are_each_others_inverse(store: Any, said: Any) -> None:
    said("revoke", "shop.mail:mail:1")
    assert store.get("shop.mail:mail:1").revoked is True

    said("release", "shop.mail:mail:1")
    assert store.get("shop.mail:mail:1").revoked is False


def test_stats_count_by_task_and_state(store: Any, said: Any) -> None:
    done(store)
    take(store, "shop.order:order:2")
    crash_times(store, 2, "shop.mail:mail:1")

    counted = json.loads(said("stats", "--json"))

    assert counted["shop.order"]["done"] == 1
    assert counted["shop.order"]["running"] == 1
    assert counted["shop.mail"]["crashes"] == 2


def test_only_tasks_are_listed_as_tasks(store: Any, said: Any) -> None:
    """Cool-downs, shared steps and plain code have keys of their own, with a colon in each."""
    named = Celery("named", broker="memory://", set_as_current=False)
    binding_of(named).use(store)

    @named.task(
        base=IdempotentTask, bind=True, name="a:b", shared=False, idem_key="order:{number}",
        cooldown_s=60,
    )  # fmt: skip
    def pay(self: Any, number: int) -> int:
        return int(self.step("stock", int, number, key=f"api:{number}"))

    pay.apply((7,))
    with idempotent("order:7", ttl=60, app=named):
        pass
    store.revoke("shop.mail:mail:1", 60_000)

    counted = json.loads(said("stats", "--json"))

    assert {name: numbers.get("done", 0) for name, numbers in counted.items()} == {
        "a:b": 1,
        "(cool-downs)": 1,
        "(shared steps)": 1,
        "(plain code)": 1,
        "shop.mail": 0,
    }
    [record] = json.loads(said("list", "--task", "a:b", "--json"))
    assert record["key"].startswith("a%3Ab:")


def test_prune_says_where_nothing_is_to_be_pruned(store: Any, said: Any) -> None:
    assert "expire by itself" in said("prune")


def test_manage_py_prunes_the_database_in_batches(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from django.core.management import call_command

    from celery_idem.django.models import KeyRecord
    from celery_idem.django.store import DjangoStore

    store = DjangoStore(database)
    for n in range(30):
        done(store, f"shop.order:order:{n}")
    KeyRecord.objects.using(database).update(expires_ms=1)
    binding = binding_of(current_app)
    before = binding.__dict__.copy()
    binding.use(store)
    try:
        call_command("idem", "prune", "--batch", "7")
    finally:
        binding.__dict__.update(before)
        store.close()

    assert "30 expired records deleted" in capsys.readouterr().out
    assert KeyRecord.objects.using(database).count() == 0


def test_manage_py_says_errors_as_django_does(store: Any) -> None:
    from django.core.management import CommandError, call_command

    with pytest.raises(CommandError, match="no record of 'nothing'"):
        call_command("idem", "show", "nothing")


def test_the_task_for_beat_prunes(database: str) -> None:
    from celery_idem.django.models import KeyRecord
    from celery_idem.django.store import DjangoStore
    from celery_idem.django.tasks import prune

    store = DjangoStore(database)
    for n in range(5):
        done(store, f"shop.order:order:{n}")
    KeyRecord.objects.using(database).update(expires_ms=1)
    binding = binding_of(current_app)
    before = binding.__dict__.copy()
    binding.use(store)
    try:
        assert [prune(most=3), prune(), prune()] == [3, 2, 0]
    finally:
        binding.__dict__.update(before)
        store.close()


@pytest.mark.parametrize(
    ("words", "said_so"),
    [
        (("list", "--limit", "0"), "--limit"),
        (("stats", "--limit", "-1"), "--limit"),
        (("prune", "--batch", "0"), "--batch"),
        (("prune", "--max", "-1"), "--max"),
        (("revoke", KEY, "--for", "0"), "more than 0 and at most 3153600000 seconds, not 0"),
        (("revoke", KEY, "--for", "nan"), "not nan"),
        (("revoke", KEY, "--for", "inf"), "not inf"),
        (("revoke", KEY, "--for", "1e30"), "not 1e+30"),
        (("show", " "), "a key is not empty"),
        (("revoke", ""), "a key is not empty"),
        (("release", ""), "a key is not empty"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_would(
    store: Any, said: Any, words: tuple[str, ...], said_so: str
) -> None:
    assert said_so in said(*words, code=2)
    assert list(store.scan()) == []


def test_revoking_says_what_may_surprise(store: Any, said: Any) -> None:
    done(store)
    take(store, "shop.mail:mail:1")

    assert "nothing was known of it" in said("revoke", "mail:1")
    assert "its work is done, by task t1" in said("revoke", KEY)
    assert said("revoke", "shop.mail:mail:1") == "'shop.mail:mail:1' is revoked\n"
    assert json.loads(said("revoke", "shop.mail:mail:2", "--json"))["known"] is False
