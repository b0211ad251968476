"""What is kept of a letter, and for how long: retention, redaction."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from celery_idem.core.errors import ConfigError
from celery_idem.deadletters import post, retention
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import LetterSettings, letters_of
from celery_idem.deadletters.letter import Letter, Message, Reason, letter_id, named_fault
from celery_idem.deadletters.replay import Fate, replay


def app_with(load_app: Any, url: str, **settings: Any) -> Any:
    idem = json.dumps({"dead_letters": settings})
    return load_app("tests.apps.letters", TEST_BROKER=url, TEST_IDEM=idem).app


def letter(number: int) -> Letter:
    message = Message(body=b"[[], {}, {}]", headers={"id": f"k-{number}"}, queue="celery")
    return Letter(
        id=letter_id(f"k-{number}", message),
        reason=Reason.FAILURE,
        message=message,
        task="letters.good",
        task_id=f"k-{number}",
        fault=named_fault("ValueError", "secret 4711", "…", "shop:pay"),
    )


def hide(letter: Letter) -> Letter:
    """A redact hook: no body."""
    from dataclasses import replace

    return replace(letter, message=replace(letter.message, body=b""))


def fails(letter: Letter) -> Letter:
    """A redact hook with a fault."""
    raise KeyError("secret 4711")


def test_the_oldest_above_the_number_are_deleted_and_said(
    redis_url: str, effects: Any, load_app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_with(load_app, redis_url, max_letters=3)
    for number in range(5):
        post.put(app, letter(number))

    with caplog.at_level(logging.WARNING, "celery_idem.deadletters"):
        assert retention.sweep(app) == 2

    assert [it.task_id for it in letters_of(app).page(Filter())] == ["k-4", "k-3", "k-2"]
    assert "2 old letters deleted" in caplog.text
    assert retention.sweep(app) == 0


def test_without_a_setting_nothing_is_deleted(redis_url: str, effects: Any, load_app: Any) -> None:
    app = app_with(load_app, redis_url)
    post.put(app, letter(1))

    assert retention.sweep(app) == 0
    assert letters_of(app).count(Filter()) == 1


def test_a_redacted_letter_is_kept_without_and_not_replayed(
    redis_url: str, effects: Any, load_app: Any
) -> None:
    app = app_with(load_app, redis_url, redact=f"{__name__}:hide")
    post.put(app, letter(1))

    [kept] = letters_of(app).page(Filter())
    assert kept.message.body == b""
    assert not kept.replayable
    assert replay(app, [kept]).fates == {Fate.NOT_REPLAYABLE: 1}


def test_a_redact_hook_that_fails_keeps_no_secret(
    redis_url: str, effects: Any, load_app: Any
) -> None:
    app = app_with(load_app, redis_url, redact=f"{__name__}:fails")
    post.put(app, letter(1))

    [kept] = letters_of(app).page(Filter())
    assert kept.message.body == b""
    assert "4711" not in repr(kept)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stor": "redis://"}, "did you mean 'store'"),
        ({"route": "mail"}, "store, queue"),
        ({"unknown_task_grace_s": -1}, "at least 0"),
        ({"all_tasks": "yes"}, "True or False"),
        ({"redact": "no.such:hook"}, "can't be loaded"),
        ({"max_letters": 0}, "at least 1"),
        ({"flood_pause_s": -1}, "at least 0"),
        ({"arguments": "some"}, "repr, full, none"),
    ],
)
def test_a_bad_setting_is_said(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LetterSettings.from_dict(given)
