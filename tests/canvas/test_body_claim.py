"""Who has the right to send a chord's body, asked while that changes (Celery from 5.7 on)."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_idem.followups import body_claimed_for

CLAIMED_S, SENT_S = 20, 300


@pytest.mark.celery_min(5, 7)  # before, there is no such right
def test_a_body_that_is_sent_in_this_moment_is_not_waited_for_as_long_as_its_word_is_kept(
    redis_server: Any,
) -> None:
    """Asked in two steps, it was: five minutes, in which the message took a place."""
    app = Celery("claims", backend=redis_server.url(), set_as_current=False)
    key = app.backend.get_key_for_group("g", ".c")
    member: Any = SimpleNamespace(chord={"task": "body"}, group="g")
    over = threading.Event()

    def sent_again_and_again() -> None:
        with redis_server.client() as client:
            while not over.is_set():
                client.set(key, "token", ex=CLAIMED_S)
                client.set(key, "done", ex=SENT_S)

    sender = threading.Thread(target=sent_again_and_again)
    sender.start()
    try:
        answers = [body_claimed_for(app, member) for _ in range(3000)]
    finally:
        over.set()
        sender.join(30)

    assert 0 < max(answers) <= CLAIMED_S
    assert 0.0 in answers
