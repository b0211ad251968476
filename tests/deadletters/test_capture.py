"""Nothing that Celery would have dropped is dropped: each way out has its letter (S-F2, S-V4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import chord
from celery.exceptions import TimeLimitExceeded

from celery_idem.core.record import State
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Reason
from tests.deadletters.looking import DEADLINE_S, letter_of, queues_are_empty
from tests.deadletters.stages import letters_stage
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage


@pytest.fixture(
    scope="module", params=["redis", pytest.param("postgres", marks=pytest.mark.postgres)]
)
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    with letters_stage(request, tmp_path_factory, request.param) as stage:
        stage.start_worker(concurrency=2)
        yield stage


def test_a_final_failure_leaves_the_whole_message(stage: Stage) -> None:
    """C37: on Redis, stock Celery leaves no trace of it."""
    sent = stage.tasks.breaks.apply_async(
        ("f",), priority=3, link=stage.tasks.note.si(name="linked"), headers={"own": "header"}
    )
    with pytest.raises(RuntimeError, match="can't be done"):
        sent.get(timeout=DEADLINE_S)

    letter = letter_of(stage, sent.id)
    args, kwargs, embed = json.loads(letter.message.body)
    assert (args, kwargs) == (["f"], {})
    assert embed["callbacks"][0]["task"] == "letters.note"
    assert letter.reason is Reason.FAILURE
    assert (letter.task, letter.key) == ("letters.breaks", "letters.breaks:breaks:f")
    assert letter.message.headers["own"] == "header"
    assert letter.message.headers["id"] == sent.id
    assert letter.message.properties["priority"] == 3
    assert letter.message.queue == "celery"
    assert letter.fault.error_type == "RuntimeError"
    assert letter.fault.place == "apps.letters:breaks"
    assert "can't be done" in letter.fault.traceback
    assert (letter.times, letter.retries, letter.crashes) == (1, 0, 0)
    assert letter.fence > 0
    assert letter.worker == stage.workers[0].hostname
    wait_until(lambda: queues_are_empty(stage), DEADLINE_S, "the ack")


def test_exhausted_retries_are_told_apart(stage: Stage) -> None:
    """C37, second half."""
    sent = stage.tasks.retries.delay("r")
    with pytest.raises(ValueError, match="not yet"):
        sent.get(timeout=DEADLINE_S)

    letter = letter_of(stage, sent.id)
    assert letter.reason is Reason.RETRIES_EXHAUSTED
    assert letter.retries == 2
    assert stage.effects.count("start:r") == 3


def test_reject_without_requeue_is_no_delete(stage: Stage) -> None:
    """C37."""
    sent = stage.tasks.rejects.delay("j")

    letter = letter_of(stage, sent.id)
    assert letter.reason is Reason.REJECTED
    assert "refused" in letter.fault.message
    wait_until(lambda: queues_are_empty(stage), DEADLINE_S, "the ack")


def test_a_pill_becomes_a_letter_after_three_crashes(stage: Stage) -> None:
    """C38: without end on stock Celery."""
    sent = stage.tasks.pill.apply_async(("p",), link_error=stage.tasks.heard.si(name="told:p"))
    behind = stage.tasks.good.delay("behind the pill")

    letter = letter_of(stage, sent.id)
    assert letter.reason is Reason.POISON
    assert stage.effects.count("start:p") == 3
    assert behind.get(timeout=DEADLINE_S) == "behind the pill"
    stage.effects.wait_count("told:p", 1, DEADLINE_S)
    wait_until(lambda: sent.state == "FAILURE", DEADLINE_S, "the failure")
    assert stage.effects.count("told:p") == 1


def test_the_hard_time_limit_leaves_a_letter_and_tells_once(stage: Stage) -> None:
    """C25: on stock Celery one run, acked, nothing left; and its errback is called twice."""
    sent = stage.tasks.hangs.apply_async(("h",), link_error=stage.tasks.heard.si(name="told:h"))
    with pytest.raises(TimeLimitExceeded):
        sent.get(timeout=DEADLINE_S)

    letter = letter_of(stage, sent.id)
    assert letter.reason is Reason.TIME_LIMIT
    assert "1" in letter.fault.message
    stage.effects.wait_count("told:h", 1, DEADLINE_S)
    wait_until(lambda: queues_are_empty(stage), DEADLINE_S, "the ack")
    assert stage.effects.count("told:h") == 1


def test_a_job_that_hung_once_is_done_at_its_second_try(stage: Stage) -> None:
    """C25, acks_on_timeout=False."""
    sent = stage.tasks.hangs_again.delay("once", times=1)

    assert sent.get(timeout=DEADLINE_S) == "once"
    assert stage.effects.count("start:once") == 2
    assert stage.effects.count("once") == 1


def test_a_job_that_always_hangs_is_tried_three_times(stage: Stage) -> None:
    """C25: exactly 3 attempts, then a letter; the key is free."""
    sent = stage.tasks.hangs_again.delay("always", times=99)

    letter = letter_of(stage, sent.id)
    assert letter.reason is Reason.TIME_LIMIT
    assert stage.effects.count("start:always") == 3
    wait_until(
        lambda: (
            (record := stage.record("letters.hangs_again:again:always"))
            and record.state is State.FREE
        ),
        DEADLINE_S,
        lambda: f"the key to be free: {stage.record('letters.hangs_again:again:always')}",
    )
    wait_until(lambda: sent.state == "FAILURE", DEADLINE_S, "the failure")


def test_a_result_that_cannot_be_kept_is_a_failure_like_any(stage: Stage) -> None:
    """It fails outside of the task's own body."""
    sent = stage.tasks.unserialisable.delay("u")

    letter = letter_of(stage, sent.id)
    assert letter.reason is Reason.FAILURE
    assert letter.task == "letters.unserialisable"


def test_a_member_of_a_chord_that_dies_fails_the_chord(stage: Stage) -> None:
    """C52: three chains of two; the first step of one is a pill. On stock Celery it hangs."""
    tasks = stage.tasks
    header = [
        tasks.note.si(name="a1") | tasks.note.si(name="a2"),
        tasks.pill.si("in a chord") | tasks.note.si(name="b2"),
        tasks.note.si(name="c1") | tasks.note.si(name="c2"),
    ]
    body = tasks.heard.si(name="chord body").on_error(tasks.heard.si(name="chord failed"))
    result = chord(header)(body)

    stage.effects.wait_count("chord failed", 1, DEADLINE_S)
    wait_until(lambda: result.state == "FAILURE", DEADLINE_S, "the chord's failure")
    assert stage.effects.count("chord body") == 0
    assert stage.effects.count("b2") == 0
    letters = letters_of(tasks.app).page(Filter(key="letters.pill:pill:in a chord"))
    assert [it.reason for it in letters] == [Reason.POISON]


def test_garbage_in_a_queue_ends_no_worker(stage: Stage) -> None:
    """C20: plain text, JSON that is no envelope, a body that is no body, a refused type, headers
    of the wrong kind; each followed by a good job. Stock Celery ends with status 1 and has lost
    the text."""
    tasks, app = stage.tasks, stage.tasks.app
    before = letters_of(app).count(Filter(reason=Reason.UNDECODABLE))
    rubbish = [b"plain text", b'{"json": true}', b"[1, 2]", b"\xff\xfe\x00", b'"text"']
    with stage.server.client() as client:
        for raw in rubbish:
            client.lpush("celery", raw)
    assert tasks.good.delay("after garbage").get(timeout=DEADLINE_S)

    with app.producer_or_acquire() as producer:
        common: dict[str, Any] = {"exchange": "", "routing_key": "celery"}
        head = {"task": "letters.good", "id": "undecodable-1"}
        producer.publish(b"{half a", content_type="application/json", content_encoding="utf-8",
                         headers=head, **common)  # fmt: skip
        producer.publish(b"cos\nsystem\n(S'false'\ntR.", headers={**head, "id": "refused-1"},
                         content_type="application/x-python-serialize",
                         content_encoding="binary", **common)  # fmt: skip
        producer.publish([[], {}, {}], serializer="json", headers={"task": ["no", "name"]},
                         **common)  # fmt: skip
        producer.publish([[], {}, {}], serializer="json", headers={"task": "letters.good"},
                         **common)  # fmt: skip
        producer.publish({"hello": 1}, serializer="json", headers={}, **common)
    assert tasks.good.delay("after more garbage").get(timeout=DEADLINE_S)

    store = letters_of(app)
    wait_until(
        lambda: store.count(Filter(reason=Reason.UNDECODABLE)) == before + 10,
        DEADLINE_S,
        lambda: str([it.fault.message for it in store.page(Filter(reason=Reason.UNDECODABLE))]),
    )
    kept = {it.message.body for it in store.page(Filter(reason=Reason.UNDECODABLE), limit=500)}
    assert {*rubbish, b"{half a", b"cos\nsystem\n(S'false'\ntR."} <= kept
    assert stage.workers[0].returncode is None
    wait_until(lambda: queues_are_empty(stage), DEADLINE_S, "the acks")
