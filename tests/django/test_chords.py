"""A chord's parts with results in the database, in one process: counted once each (C50)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.core.management import call_command

from celery_idem.django import chords
from tests.django import databases
from tests.django.databases import ALL

KEPT_MS = 3_600_000


class Undo(Exception):
    """Makes a count fail."""


@pytest.fixture
def counted(database: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    databases.as_default(database, {}, monkeypatch)
    monkeypatch.setattr(chords, "_has_inbox", chords._has_inbox.__wrapped__)
    return []


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_each_member_of_each_chord_is_counted_once(counted: list[str]) -> None:
    for chord, member in [("g1", "a"), ("g1", "a"), ("g1", "b"), ("g2", "a"), ("g1", "b")]:
        chords.count_once(chord, member, KEPT_MS, lambda m=f"{chord}{member}": counted.append(m))

    assert counted == ["g1a", "g1b", "g2a"]
    assert databases.entries("default").count() == 3


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_a_count_that_fails_is_tried_again_by_the_next_report(counted: list[str]) -> None:
    def fails() -> None:
        raise Undo

    with pytest.raises(Undo):
        chords.count_once("g", "a", KEPT_MS, fails)
    assert databases.entries("default").count() == 0

    chords.count_once("g", "a", KEPT_MS, lambda: counted.append("a"))
    assert counted == ["a"]


def test_a_database_without_the_table_counts_as_before_and_says_how_to_mend_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[str] = []
    monkeypatch.setattr(chords, "_has_inbox", chords._has_inbox.__wrapped__)
    alias = databases.alias_of(f"sqlite:///{tmp_path}/results.sqlite3")
    databases.as_default(alias, {}, monkeypatch)
    call_command("migrate", "django_celery_results", verbosity=0)

    with caplog.at_level(logging.WARNING, "celery_idem.django.chords"):
        chords.count_once("g", "a", KEPT_MS, lambda: counted.append("a"))

    assert counted == ["a"]
    assert "manage.py migrate celery_idem --database default" in caplog.text


def test_the_backend_is_wrapped_once() -> None:
    from django_celery_results.backends.database import DatabaseBackend

    before: Any = DatabaseBackend.on_chord_part_return
    chords.install()

    assert before.counts_once
    assert DatabaseBackend.on_chord_part_return is before
