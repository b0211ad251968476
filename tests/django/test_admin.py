"""The admin: to be read; releasing and revoking ask for permission and confirmation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from celery import current_app

from celery_idem.binding import binding_of
from celery_idem.core.record import State
from celery_idem.core.step import StepRecord, StepState
from celery_idem.django.store import DjangoStore
from tests.conformance.asking import LONG_MS, RESULT, ask, crash_times, take
from tests.django.databases import as_default

LIST = "/admin/celery_idem/keyrecord/"


@pytest.fixture
def store(database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    as_default(database, {"store": "django"}, monkeypatch)
    store = DjangoStore(patience_s=10)
    before = binding_of(current_app).__dict__.copy()
    binding_of(current_app).use(store)
    yield store
    binding_of(current_app).__dict__.update(before)
    store.close()


@pytest.fixture(scope="module", autouse=True)
def pages_tell_their_context() -> Iterator[None]:
    from django.test.utils import setup_test_environment, teardown_test_environment

    setup_test_environment()
    yield
    teardown_test_environment()


@pytest.fixture
def browser(store: DjangoStore) -> Any:
    """Somebody who may see records, release and revoke."""
    return logged_in("operator", "view_keyrecord", "release_keyrecord", "revoke_keyrecord")


def logged_in(name: str, *permissions: str, superuser: bool = False) -> Any:
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    User.objects.filter(username=name).delete()
    user = User.objects.create_user(name, password="secret", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def filled(store: DjangoStore) -> None:
    """One of each kind of record."""
    for n in range(6):
        claim = take(store, f"shop.order:order:{1000 + n}", f"w{n}", task_id=f"task-{n}")
        for step in ("order", "email", "stock"):
            value = StepRecord(StepState.DONE, f"shop.jobs.{step}", RESULT).pack()
            store.put_step(claim, step, value)
        store.complete(claim, RESULT)
    take(store, "shop.report:report:2025-06", "w", task_id="task-running", lease_ms=LONG_MS)
    crash_times(store, 2, "shop.charge:order:1002")
    store.revoke("shop.charge:order:1003", LONG_MS)


def pk_of(key: str) -> str:
    from celery_idem.django.models import KeyRecord

    return str(KeyRecord.objects.get(key=key).pk)


def test_records_are_found_by_key_and_task_id_and_state(store: Any, browser: Any) -> None:
    filled(store)

    def keys(query: str) -> set[str]:
        page = browser.get(f"{LIST}?{query}")
        assert page.status_code == 200
        return set(re.findall(r'class="field-key"><a [^>]*>([^<]+)</a>', page.content.decode()))

    assert len(keys("")) == 9
    assert keys("q=1004") == {"shop.order:order:1004"}
    assert keys("q=task-running") == {"shop.report:report:2025-06"}
    assert keys("state=running") == {"shop.report:report:2025-06"}
    assert keys("state=revoked") == {"shop.charge:order:1003"}
    assert keys("state=crashed") == {"shop.charge:order:1002"}


def test_a_record_shows_its_steps_and_not_its_result(store: Any, browser: Any) -> None:
    filled(store)

    page = browser.get(f"{LIST}{pk_of('shop.order:order:1000')}/change/").content.decode()

    assert "done (shop.jobs.email)" in page
    assert "13 bytes of application/json" in page
    assert "paid" not in page


@pytest.mark.parametrize("what", ["add/", "{pk}/delete/"])
def test_nobody_adds_or_deletes_records_by_hand(store: Any, what: str) -> None:
    filled(store)
    root = logged_in("root", superuser=True)

    url = LIST + what.format(pk=pk_of("shop.order:order:1000"))

    assert root.get(url).status_code == 403


def test_nobody_changes_records_by_hand(store: Any) -> None:
    filled(store)
    root = logged_in("root", superuser=True)

    answer = root.post(f"{LIST}{pk_of('shop.order:order:1000')}/change/", {"key": "other"})

    assert answer.status_code == 403


def test_releasing_asks_first_and_then_frees_the_key(store: Any, browser: Any) -> None:
    filled(store)
    key = "shop.charge:order:1002"
    form = {"action": "release", "_selected_action": [pk_of(key)]}

    asked = browser.post(LIST, form)
    assert "Crashes and revocations are forgiven" in asked.content.decode()
    assert store.get(key).crashes == 2

    browser.post(LIST, {**form, "confirmed": "yes"})
    assert (store.get(key).state, store.get(key).crashes) == (State.FREE, 0)


def test_a_done_key_is_not_released(store: Any, browser: Any) -> None:
    filled(store)
    key = "shop.order:order:1000"

    answer = browser.post(
        LIST,
        {"action": "release", "_selected_action": [pk_of(key)], "confirmed": "yes"},
        follow=True,
    )

    assert store.get(key).state is State.DONE
    assert "left as they are, since done: 1" in answer.content.decode()


def test_revoking_asks_first_and_then_stops_the_key_for_good(store: Any, browser: Any) -> None:
    filled(store)
    key = "shop.charge:order:1002"
    form = {"action": "revoke", "_selected_action": [pk_of(key)]}

    browser.post(LIST, form)
    assert store.get(key).revoked is False

    browser.post(LIST, {**form, "confirmed": "yes"})
    assert store.get(key).revoked is True
    assert type(store.claim(ask(key))).__name__ == "Revoked"


@pytest.mark.parametrize("action", ["release", "revoke"])
def test_without_the_permission_there_is_no_such_action(store: Any, action: str) -> None:
    filled(store)
    reader = logged_in("reader", "view_keyrecord")
    key = "shop.charge:order:1002"

    page = reader.get(LIST).content.decode()
    reader.post(LIST, {"action": action, "_selected_action": [pk_of(key)], "confirmed": "yes"})

    assert f'value="{action}"' not in page
    assert (store.get(key).crashes, store.get(key).revoked) == (2, False)


def test_who_revoked_and_released_a_key_is_in_its_history(store: Any, browser: Any) -> None:
    filled(store)
    pk = pk_of("shop.charge:order:1002")
    for action in ("revoke", "release"):
        form = {"action": action, "_selected_action": [pk], "confirmed": "yes"}
        browser.post(LIST, form)

    history = browser.get(f"{LIST}{pk}/history/").content.decode()

    assert re.findall(r"<td>\s*(operator)\s*</td>", history) == ["operator"] * 2
    assert all(word in history for word in ("revoked", "released"))


def test_a_step_in_a_transaction_is_told_from_others(store: Any, browser: Any) -> None:
    from celery_idem.django.models import InboxEntry, digest_of

    filled(store)
    key = "shop.order:order:1000"
    InboxEntry.objects.create(
        digest=digest_of(key, "order"), key=key, name="order", fence=1, value=b"", created_ms=1,
        expires_ms=LONG_MS,
    )  # fmt: skip

    page = browser.get(f"{LIST}{pk_of(key)}/change/").content.decode()

    assert page.count("in its own transaction") == 1


def test_actions_work_under_atomic_requests_on_a_database_with_one_writer(
    store: Any, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store commits on a connection of its own, whatever transaction the request is in."""
    from django.db import connections

    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    monkeypatch.setitem(connections.databases["default"], "ATOMIC_REQUESTS", True)
    filled(store)
    keys = [f"shop.charge:order:{n}" for n in (1002, 1003)]
    form = {"action": "release", "_selected_action": [pk_of(k) for k in keys], "confirmed": "yes"}

    page = browser.post(LIST, form, follow=True).content.decode()

    assert "Released: 2" in page
    assert [(store.get(k).crashes, store.get(k).revoked) for k in keys] == [(0, False)] * 2
