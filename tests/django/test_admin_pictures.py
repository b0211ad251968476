"""The admin in a real browser; ``IDEM_PICTURES=docs/images`` keeps what it looks like."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.django.test_admin import LIST, filled, logged_in, pk_of, store

__all__ = ["store"]

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="playwright is not installed"
    ),
]


def test_an_operator_sees_the_list_and_one_record(
    store: Any, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.test.testcases import LiveServerThread
    from playwright.sync_api import sync_playwright

    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    filled(store)
    session = logged_in("operator", superuser=True).cookies["sessionid"].value
    record = pk_of("shop.order:order:1000")
    folder = Path(os.environ.get("IDEM_PICTURES", tmp_path))
    server = LiveServerThread("127.0.0.1", StaticFilesHandler)
    server.daemon = True
    server.start()
    assert server.is_ready.wait(30)
    base = f"http://127.0.0.1:{server.port}"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page(viewport={"width": 1400, "height": 760})
            page.context.add_cookies([{"name": "sessionid", "value": session, "url": base}])
            page.goto(base + LIST)
            assert page.locator("td.field-key, th.field-key").count() == 9
            page.screenshot(path=folder / "admin-records.png")
            page.goto(f"{base}{LIST}{record}/change/")
            assert page.get_by_text("done (shop.jobs.email)").count() == 1
            page.screenshot(path=folder / "admin-record.png", full_page=True)
            browser.close()
    finally:
        server.terminate()
    assert (folder / "admin-records.png").stat().st_size > 10_000
