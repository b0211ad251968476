"""A morning with the DLQ in a browser: the same night, seen and sent again in the shop's admin.

``IDEM_PICTURES=docs/images`` keeps how it looks, for docs/a-morning-with-the-dlq.md.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from example_project.night import AGAIN, CLOSED, FIRST
from tests.morning.conftest import Shop
from tests.morning.test_terminal import ALL, DECLINED

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
LETTERS = "/admin/celery_idem/deadletter/"
#: Milliseconds that the browser waits for a page, which may wait for a canary.
PATIENCE_MS = 90_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="playwright is not installed"
    ),
]


def test_a_morning_in_the_admin(shop: Shop, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    folder = Path(os.environ.get("IDEM_PICTURES", tmp_path))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(PATIENCE_MS)
        _log_in(page, shop)

        # three faults
        page.goto(f"{shop.base}{LETTERS}groups/")
        assert page.get_by_text(f"{ALL} letters, 3 faults").count() == 1
        page.screenshot(path=folder / "morning-faults.png")

        # the largest, and one of its letters
        _choose_fault(page, "Unreachable")
        page.locator("th.field-id a").first.click()
        assert page.get_by_text("answered 503").count() >= 1
        top = {"x": 0, "y": 0, "width": 1280, "height": 640}  # above the traceback's paths
        page.screenshot(path=folder / "morning-letter.png", clip=top)
        address = page.url

        # the gateway is open again: all of the fault, a canary first
        shop.end_of_the_night()
        page.goto(f"{shop.base}{LETTERS}groups/")
        _choose_fault(page, "Unreachable")
        _act(page, "canary")
        assert page.get_by_text(f"{CLOSED - AGAIN} will be sent and run").count() == 1
        assert page.get_by_text(f"{AGAIN} will be sent and run nothing").count() == 1
        page.screenshot(path=folder / "morning-replay.png")
        page.locator("input[type=submit][value='Replay with canary']").click()
        assert page.locator(".messagelist .success").count() == 1
        shop.wait_paid(CLOSED)

        # what became of the letter, and who did it
        page.goto(address)
        assert page.get_by_text("replayed").count() >= 1
        assert page.get_by_text("visitor").count() >= 1
        page.screenshot(path=folder / "morning-history.png")

        # no bank pays these
        page.goto(f"{shop.base}{LETTERS}groups/")
        _choose_fault(page, "CardDeclined")
        _act(page, "delete")
        page.locator("input[type=submit][value='Delete']").click()
        page.goto(f"{shop.base}{LETTERS}groups/")
        assert page.get_by_text(f"{ALL - CLOSED - DECLINED} letters, 1 fault").count() == 1
        browser.close()

    numbers = list(range(FIRST, FIRST + CLOSED))
    assert shop.charges() == numbers
    assert shop.mails() == numbers


def _log_in(page: Any, shop: Shop) -> None:
    page.goto(f"{shop.base}/admin/")
    page.fill("#id_username", "visitor")
    page.fill("#id_password", shop.password)
    page.click("input[type=submit]")


def _choose_fault(page: Any, error: str) -> None:
    page.locator("td.error a", has_text=error).click()
    page.wait_for_url("**group=**")


def _act(page: Any, action: str) -> None:
    """For all letters of the filter."""
    page.select_option("select[name=action]", action)
    page.check("input[name=across]")
    page.click("button[name=go]")
