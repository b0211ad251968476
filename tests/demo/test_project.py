"""The example's shop as a project: its first commands, and both ways to the same commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.demo.stage import ROOT
from tests.support import services
from tests.support.processes import env_without_django

MANAGE = (str(ROOT / "example_project" / "manage.py"),)
CELERY = ("-m", "celery", "-A", "example_project.shop")


@pytest.fixture
def say(tmp_path: Path) -> Callable[..., str]:
    """``say(*words, code=0)``: run Python with these words; what it printed. Each test has a
    database of its own, and no broker."""

    def run(*words: str, code: int = 0) -> str:
        ended = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,  # a script finds its project from anywhere
            env={
                **env_without_django(),
                "PYTHONPATH": str(ROOT),
                "DATABASE_URL": f"sqlite:///{tmp_path}/shop.sqlite3",
                "SHOP_STORE": "django",
                "SHOP_BROKER": "redis://127.0.0.1:1/0",
            },
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    return run


def test_the_first_commands_of_a_project_work_and_both_ways_say_the_same(say) -> None:
    assert "celery_idem.E004" in say(*MANAGE, "check", "--database", "default", code=1)
    say(*MANAGE, "migrate")
    assert "celery_idem.W001" in say(*MANAGE, "check", "--database", "default")
    say(*MANAGE, "makemigrations", "--check")

    say(*MANAGE, "idem", "revoke", "shop.complete_order:order:7")

    listed = [say(*way, "idem", "list", "--json") for way in (MANAGE, CELERY)]
    assert listed[0] == listed[1]
    assert [record["key"] for record in json.loads(listed[0])] == ["shop.complete_order:order:7"]
    for way in (MANAGE, CELERY):
        assert "no record of 'nothing'" in say(*way, "idem", "show", "nothing", code=1)
        assert "No such command" in say(*way, "idem", "nonsense", code=2)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``database(url)`` of the shop, whose import must not give other tests its settings."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "example_project.shop.settings")
    from example_project.shop.database import database

    return database


def test_what_a_database_url_means(database: Any) -> None:
    assert database("sqlite:///a/b.sqlite3")["NAME"] == "a/b.sqlite3"
    assert database("sqlite:////a/b.sqlite3")["NAME"] == "/a/b.sqlite3"
    entry = database("postgres://me:p%40ss@db.example:5433/shop?sslmode=require")
    assert entry == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "shop",
        "USER": "me",
        "PASSWORD": "p@ss",
        "HOST": "db.example",
        "PORT": "5433",
        "OPTIONS": {"sslmode": "require"},
    }
    assert database("mariadb://root@127.0.0.1/shop")["OPTIONS"] == {"charset": "utf8mb4"}


@pytest.mark.parametrize("url", ["oracle://x/y", "shop", "postgresql://host", "sqlite://"])
def test_another_url_is_an_error_that_says_what_is_allowed(database: Any, url: str) -> None:
    from django.core.exceptions import ImproperlyConfigured

    with pytest.raises(ImproperlyConfigured, match=r"sqlite:///shop\.sqlite3 or postgresql://"):
        database(url)


@pytest.mark.postgres
def test_the_shops_settings_are_right_for_a_server(monkeypatch) -> None:
    """On PostgreSQL its records are behind Redis, in the database: nothing to warn about."""
    monkeypatch.setenv("SHOP_STORE", "")
    monkeypatch.setenv("DATABASE_URL", services.POSTGRES_URL)
    code = (
        "import django, example_project.shop; django.setup(); from django.conf import settings; "
        "from django.core.management import call_command; call_command('check'); "
        "print(settings.CELERY_IDEM['store'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100,
        env=env_without_django(), check=True,
    )  # fmt: skip
    assert ended.stdout.splitlines() == [
        "System check identified no issues (0 silenced).",
        "tiered",
    ]
