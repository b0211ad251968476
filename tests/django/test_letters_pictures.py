"""A morning in the admin, in a real browser; ``IDEM_PICTURES=docs/images`` keeps how it looks."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from tests.django import databases
from tests.django.test_admin import logged_in
from tests.django.test_admin_pictures import CHROMIUM, FLAGS
from tests.support.effects import Effects
from tests.support.waiting import wait_until

DEADLINE_S = 90
LIST = "/admin/celery_idem/deadletter/"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="playwright is not installed"
    ),
]


@contextmanager
def served() -> Iterator[str]:
    """The project's pages, at this address."""
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.test.testcases import LiveServerThread

    server = LiveServerThread("127.0.0.1", StaticFilesHandler)
    server.daemon = True
    server.start()
    assert server.is_ready.wait(30)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.terminate()


@pytest.fixture
def night(
    database: str, redis_url: str, effects: Effects, load_app: Any, start_worker: Any,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> Any:  # fmt: skip
    """What the night left: 14 letters of three faults, and a gateway that is up again."""
    import celery._state

    idem = json.dumps({"store": "django", "dead_letters": {"arguments": "full"}})
    databases.as_default(database, {}, monkeypatch)
    shop = load_app(
        "tests.apps.shop_letters",
        TEST_BROKER=redis_url,
        TEST_IDEM=idem,
        TEST_DATABASE_URL=databases.url_of(database),
        TEST_MENDED=str(tmp_path / "mended"),
    )
    monkeypatch.setattr(celery._state, "default_app", shop.app)  # the server's threads'
    start_worker("tests.apps.shop_letters:app", concurrency=1, queues=("normal",))
    for number in range(8):
        receipt = shop.send_receipt.si(1000 + number)
        shop.complete_order.apply_async((1000 + number, "leave at the door"), link=receipt)
    for number in range(5):
        shop.send_receipt.delay(900 + number)
    shop.monthly_report.delay("2025-11")
    store = letters_of(shop.app)
    wait_until(lambda: store.count(Filter()) == 14, DEADLINE_S, "the letters of the night")
    (tmp_path / "mended").touch()
    yield shop
    store.close()


def test_an_operator_sees_three_faults_and_replays_one_with_a_canary(
    night: Any, effects: Effects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from playwright.sync_api import sync_playwright

    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    session = logged_in("ann", superuser=True).cookies["sessionid"].value
    folder = Path(os.environ.get("IDEM_PICTURES", tmp_path))
    with served() as base, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 800})
        page.set_default_timeout(DEADLINE_S * 1000)
        page.context.add_cookies([{"name": "sessionid", "value": session, "url": base}])

        page.goto(base + LIST)
        assert page.locator("th.field-id").count() == 14
        page.screenshot(path=folder / "admin-letters.png")

        page.get_by_role("link", name="By fault").click()
        assert page.get_by_text("14 letters, 3 faults.").count() == 1
        page.screenshot(path=folder / "admin-letter-faults.png")

        page.get_by_role("link", name="GatewayDown").click()
        assert page.locator("th.field-id").count() == 8
        page.locator("th.field-id a").first.click()
        assert page.get_by_text("leave at the door").count() == 1
        assert page.get_by_role("link", name="Its record").count() == 1
        page.screenshot(path=folder / "admin-letter.png", full_page=True)

        page.get_by_role("link", name="All of this fault").click()
        page.locator("select[name=action]").select_option("canary")
        page.locator("input[name=across]").check()
        page.get_by_role("button", name="Go").click()
        assert page.get_by_text("8 will be sent and run").count() == 1
        page.screenshot(path=folder / "admin-letter-canary.png")
        page.get_by_role("button", name="Replay with canary").click()
        assert page.get_by_text("8 sent").count() == 1
        browser.close()

    for number in range(8):
        effects.wait_count(f"charge:{1000 + number}", 1, deadline_s=DEADLINE_S)
        assert effects.count(f"reserve:{1000 + number}") == 1  # the step that was done
    assert all(it.task != "shop.complete_order" for it in letters_of(night.app).page(Filter()))
    for name in ("letters", "letter-faults", "letter", "letter-canary"):
        assert (folder / f"admin-{name}.png").stat().st_size > 10_000
