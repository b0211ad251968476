"""Letters for the tests of stores."""

from __future__ import annotations

from typing import Any

from celery_idem.deadletters.letter import Letter, Message, Reason, letter_id, named_fault


def letter(
    number: int,
    *,
    task: str = "t.one",
    lane: str = "low",
    reason: Reason = Reason.FAILURE,
    error: str = "ValueError",
    place: str = "shop.orders:pay",
    key: str = "",
    message: str = "can't be done",
) -> Letter:
    kept = Message(
        body=b'[[%d], {}, {"chord": null}]\x00\xff' % number,
        content_type="application/json",
        content_encoding="utf-8",
        headers={"id": f"id-{number}", "task": task, "retries": 3, "stamps": {"a": ["é", 1]}},
        properties={"priority": 4, "reply_to": "here"},
        routing_key="low",
        queue="low",
    )
    return Letter(
        id=letter_id(f"id-{number}", kept),
        reason=reason,
        message=kept,
        task=task,
        task_id=f"id-{number}",
        key=key or f"{task}:{number}",
        lane=lane,
        fault=named_fault(error, message, f"Traceback …\n{error}", place),
        retries=3,
        crashes=1,
        fence=17,
        worker="w@here",
    )


def ids(letters: Any) -> list[str]:
    return [it.task_id for it in letters]
