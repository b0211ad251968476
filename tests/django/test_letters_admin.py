"""Dead letters in the admin, in Redis and in the database: seen, replayed, deleted, logged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of, use_letters
from celery_idem.deadletters.describe import letter_id_of
from celery_idem.deadletters.letter import Attempt, Letter, Message, Reason, named_fault
from celery_idem.deadletters.redis.store import RedisLetterStore
from celery_idem.django.letters_query import PAGE
from tests.django import databases
from tests.django.test_admin import logged_in, pages_tell_their_context
from tests.support.ports import free_port

__all__ = ["pages_tell_their_context"]

LIST = "/admin/celery_idem/deadletter/"
PLACES = ["redis", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
ALL = ("view_deadletter", "replay_deadletter", "delete_deadletter")


@pytest.fixture(params=PLACES)
def app(
    request: pytest.FixtureRequest, django_databases: Any, redis_url: str, effects: Any,
    load_app: Any, monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:  # fmt: skip
    """A project whose letters are there; ``app.place`` says where."""
    alias = django_databases("postgres" if request.param == "postgres" else "sqlite")
    databases.emptied(alias)
    databases.as_default(alias, {}, monkeypatch)
    idem = {"dead_letters": {"arguments": "full"}}
    if request.param != "redis":
        idem["store"] = "django"  # type: ignore[assignment]
    env = {"TEST_BROKER": redis_url, "TEST_IDEM": json.dumps(idem), "TEST_DJANGO": "1"}
    app = load_app("tests.apps.letters", **env).app
    yield app
    letters_of(app).close()


@pytest.fixture
def browser(app: Any) -> Any:
    """Somebody who may do everything with letters."""
    return logged_in("operator", *ALL)


def put(app: Any, number: int, error: str = "GatewayDown", **fields: Any) -> Letter:
    chain = [{"task": "letters.note", "options": {"task_id": f"next-{number}"}}]
    body = json.dumps([[f"n{number}"], {}, {"chain": chain, "callbacks": None, "chord": None}])
    message = Message(
        body=body.encode(),
        content_type="application/json",
        content_encoding="utf-8",
        headers={"id": f"id-{number}", "task": "letters.breaks", "parent_id": "id-0"},
        routing_key="celery",
        queue="celery",
    )
    values: dict[str, Any] = {
        "reason": Reason.FAILURE,
        "task": "letters.breaks",
        "task_id": f"id-{number}",
        "key": f"letters.breaks:breaks:n{number}",
        "lane": "",
        "fault": named_fault(
            error, f"<b>{error}</b> at {number}", f"Traceback\n{error}", "shop:pay"
        ),
    }
    letter = Letter(**{"id": letter_id_of(f"id-{number}"), "message": message, **values, **fields})
    return letters_of(app).put(letter)


def shown(page: Any) -> list[str]:
    """The letters of a list, in its order."""
    assert page.status_code == 200
    return re.findall(
        r'class="field-id"><a href="[^"]*/deadletter/(\w+)/change/"', page.content.decode()
    )


def test_the_list_is_filtered(app: Any, browser: Any) -> None:
    first = put(app, 1)
    other = put(app, 2, "Full", reason=Reason.POISON, task="letters.other")
    put(app, 3, message=Message(b"x", queue="low"), replayable=False)
    ids = [letter_id_of(f"id-{number}") for number in (3, 2, 1)]

    def found(query: str) -> list[str]:
        return shown(browser.get(f"{LIST}?{query}"))

    assert found("") == ids
    assert found("reason=poison") == found("task=letters.other") == [other.id]
    assert found("queue=low") == found("state=not_replayable") == [ids[0]]
    assert found("state=new&queue=celery&reason=failure") == [first.id]
    assert found(f"group={other.fault.group}") == found("q=full%3C") == [other.id]
    assert found(f"key={first.key}") == [first.id]
    assert found("age=1h") == ids
    assert found("age=over-1d") == []
    assert found("reason=nonsense&age=never&after=x") == ids  # what is not known says nothing


def test_the_side_bar_offers_what_there_is(app: Any, browser: Any) -> None:
    put(app, 1)
    put(app, 2, task="letters.other")

    page = browser.get(f"{LIST}?task=letters.other&reason=failure").content.decode()

    assert 'href="?task=letters.breaks&amp;reason=failure"' in page
    assert 'href="?task=letters.other">All</a>' in page
    assert re.search(r'<li class="selected"><a href="[^"]*">letters.other</a>', page)
    assert "died again" in page


def test_pages_go_on_where_the_last_one_ended_and_nothing_is_said_twice(
    app: Any, browser: Any
) -> None:
    ids = [put(app, number).id for number in range(2 * PAGE + 3)]

    seen: list[str] = []
    address = ""
    while True:
        page = browser.get(LIST + address)
        seen += shown(page)
        older = re.search(r'href="(\?[^"]*)" class="next"', page.content.decode())
        if older is None:
            break
        address = older[1].replace("&amp;", "&")

    assert seen == ids[::-1]


def test_texts_of_a_message_are_shown_and_not_believed(app: Any, browser: Any) -> None:
    put(app, 1, task="<script>alert(1)</script>")

    for page in (LIST, f"{LIST}{letter_id_of('id-1')}/change/", f"{LIST}groups/"):
        text = browser.get(page).content.decode()
        assert "<script>alert(1)" not in text
        assert "<b>GatewayDown" not in text


def test_the_groups_page_has_a_line_for_each_fault(app: Any, browser: Any) -> None:
    """4,000 letters in the morning are three faults."""
    for number in range(9):
        put(app, number, ["GatewayDown", "Full", "Full"][number % 3])

    page = browser.get(f"{LIST}groups/").content.decode()

    assert "9 letters, 2 faults." in page
    [full, gateway] = re.findall(r'\?group=(\w+)">(\d+)</a>', page)
    assert (full[1], gateway[1]) == ("6", "3")
    assert len(shown(browser.get(f"{LIST}?group={gateway[0]}"))) == 3
    assert "0 letters, 0 faults" in browser.get(f"{LIST}groups/?age=over-7d").content.decode()


def test_a_letter_shows_everything_that_one_needs_to_judge_it(app: Any, browser: Any) -> None:
    """Traceback, arguments, history, the chain, the record."""
    parent = put(app, 0)
    letter = put(app, 1)
    letters_of(app).note(letter.id, Attempt(0, "looked at", "ann", "a note"))

    page = browser.get(f"{LIST}{letter.id}/change/").content.decode()

    for part in ("Traceback\nGatewayDown", "&quot;n1&quot;", "a note", "shop:pay", letter.key,
                 "letters.note", "next-1", "no record", "died"):  # fmt: skip
        assert part in page, part
    assert f'href="{LIST}{parent.id}/change/">dead, too' in page
    assert "next in its chain" in page


def test_the_record_is_linked_where_it_is_in_the_database(app: Any, browser: Any) -> None:
    from celery_idem.binding import store_of
    from celery_idem.django.models import digest_of

    letter = put(app, 1)
    store_of(app).revoke(letter.key, 60_000)

    page = browser.get(f"{LIST}{letter.id}/change/").content.decode()

    linked = f"/admin/celery_idem/keyrecord/{digest_of(letter.key)}/change/" in page
    assert linked == (type(store_of(app)).__name__ == "DjangoStore")
    assert "revoked" in page


def test_replaying_asks_first_says_what_would_happen_sends_and_is_logged(
    app: Any, browser: Any
) -> None:
    from django.contrib.admin.models import LogEntry

    LogEntry.objects.all().delete()
    letter, unknown = put(app, 1), put(app, 2, task="no.such.task", key="")
    form = {"action": "replay", "_selected_action": [letter.id, unknown.id]}

    asked = browser.post(LIST, form).content.decode()
    assert "1 will be sent and run" in asked
    assert "1 will be kept: this app knows no such task" in asked
    assert letters_of(app).count(Filter()) == 2

    answer = browser.post(LIST, {**form, "confirmed": "yes"}, follow=True).content.decode()
    assert "1 sent; 1 kept: this app knows no such task" in answer
    with app.connection_for_read() as connection:
        message = connection.default_channel.basic_get("celery")
        assert (message.headers["id"], message.body) == ("id-1", letter.message.body)
    [trail] = [it for it in letters_of(app).trail(letter.id) if it.what == "replayed"]
    assert trail.by.startswith("operator@admin-")
    logged = {it.object_id: (it.user.username, it.change_message) for it in LogEntry.objects.all()}
    assert logged[letter.id] == ("operator", "Replay: sent.")
    assert logged[unknown.id][1] == "Replay: kept: this app knows no such task."
    gone = browser.get(f"{LIST}{letter.id}/change/").content.decode()
    assert "was sent again, and has not come back" in gone
    assert "Replay: sent." in gone


def test_all_letters_of_a_filter_are_replayed_where_none_is_chosen(app: Any, browser: Any) -> None:
    for number in range(3):
        put(app, number)
    other = put(app, 3, "Full")
    address = f"{LIST}?q=gateway"

    asked = browser.post(address, {"action": "replay", "across": "1"}).content.decode()
    ids = re.findall(r'name="_selected_action" value="(\w+)"', asked)
    assert len(ids) == 3
    browser.post(address, {"action": "replay", "_selected_action": ids, "confirmed": "yes"})

    assert [it.id for it in letters_of(app).page(Filter())] == [other.id]


def test_deleting_asks_first_and_is_logged(app: Any, browser: Any) -> None:
    from django.contrib.admin.models import DELETION, LogEntry

    LogEntry.objects.all().delete()
    letter, kept = put(app, 1), put(app, 2)
    form = {"action": "delete", "_selected_action": [letter.id]}

    assert "gone for good" in browser.post(LIST, form).content.decode()
    assert letters_of(app).count(Filter()) == 2
    browser.post(LIST, {**form, "confirmed": "yes"})

    assert [it.id for it in letters_of(app).page(Filter())] == [kept.id]
    [entry] = LogEntry.objects.all()
    assert (entry.object_id, entry.action_flag, entry.user.username) == (
        letter.id, DELETION, "operator",
    )  # fmt: skip
    again = browser.post(LIST, {**form, "confirmed": "yes"}, follow=True).content.decode()
    assert "0 deleted" in again


@pytest.mark.parametrize("action", ["replay", "canary", "delete"])
def test_without_the_permission_there_is_no_such_action(app: Any, action: str) -> None:
    letter = put(app, 1)
    reader = logged_in("reader", "view_deadletter")
    form = {"action": action, "_selected_action": [letter.id], "confirmed": "yes"}

    pages = [reader.get(LIST), reader.get(f"{LIST}{letter.id}/change/")]
    answer = reader.post(LIST, form)

    assert all(f'value="{action}"' not in page.content.decode() for page in pages)
    assert answer.status_code == 403
    assert letters_of(app).count(Filter()) == 1


@pytest.mark.parametrize("page", ["", "groups/", "{id}/change/"])
def test_nobody_sees_letters_without_permission(app: Any, page: str) -> None:
    letter = put(app, 1)
    stranger = logged_in("stranger", "view_keyrecord")

    assert stranger.get(LIST + page.format(id=letter.id)).status_code == 403


@pytest.mark.parametrize("page", ["add/", "{id}/delete/"])
def test_nobody_adds_or_deletes_a_row_by_hand(app: Any, page: str) -> None:
    letter = put(app, 1)
    root = logged_in("root", superuser=True)

    assert root.get(LIST + page.format(id=letter.id)).status_code in (302, 403)
    assert root.post(LIST + page.format(id=letter.id), {"post": "yes"}).status_code in (302, 403)
    assert letters_of(app).count(Filter()) == 1


def test_what_is_not_there_is_not_found(app: Any, browser: Any) -> None:
    assert browser.get(f"{LIST}nobody/change/").status_code == 404


def test_an_action_without_letters_and_one_that_is_unknown_say_so(app: Any, browser: Any) -> None:
    put(app, 1)

    none = browser.post(LIST, {"action": "replay"}, follow=True).content.decode()
    unknown = browser.post(LIST, {"action": "burn"}, follow=True).content.decode()

    assert "Choose the letters first." in none
    assert "Choose an action." in unknown


def test_letters_that_cannot_be_reached_are_an_error_on_the_page(app: Any, browser: Any) -> None:
    away = RedisLetterStore.from_url(f"redis://127.0.0.1:{free_port()}/0", patience_s=0)
    use_letters(app, away)

    for page in (LIST, f"{LIST}groups/", f"{LIST}nobody/change/"):
        answer = browser.get(page)
        assert answer.status_code == 503
        assert "can't be read now" in answer.content.decode().replace("&#x27;", "'")


def test_a_site_of_another_name_stays_in_itself(app: Any, browser: Any) -> None:
    """A project may have two admin sites: links and redirects go to the one that was asked."""
    from django.contrib.admin import AdminSite
    from django.test import override_settings
    from django.urls import path

    from celery_idem.binding import store_of
    from celery_idem.django.letters_admin import DeadLetterAdmin
    from celery_idem.django.models import DeadLetter
    from tests.django import urls

    site = AdminSite(name="operations")
    site.register(DeadLetter, DeadLetterAdmin)
    both = [*urls.urlpatterns, path("operations/", site.urls)]
    letter = put(app, 1)
    store_of(app).revoke(letter.key, 60_000)  # it has a record, which this site does not show
    with override_settings(ROOT_URLCONF=tuple(both)):
        page = browser.get("/operations/celery_idem/deadletter/").content.decode()
        form = {"action": "delete", "_selected_action": [letter.id], "confirmed": "yes"}
        one = browser.get(f"/operations/celery_idem/deadletter/{letter.id}/change/")
        answer = browser.post("/operations/celery_idem/deadletter/", form)

    assert one.status_code == 200

    assert f"/operations/celery_idem/deadletter/{letter.id}/change/" in page
    assert answer["Location"].startswith("/operations/")
