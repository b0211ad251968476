"""Letters sent again: once as an effect, with all that belongs to them, whoever interrupts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import chord

from celery_idem.binding import store_of
from celery_idem.core.record import State
from celery_idem.deadletters import edit
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Letter, Reason
from celery_idem.deadletters.publish import send
from celery_idem.deadletters.replay import Fate, How, dry_run, headers_of, replay
from tests.deadletters.looking import DEADLINE_S, letter_of, queues_are_empty
from tests.deadletters.stages import PLACES, letters_stage
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage


@pytest.fixture(scope="module", params=PLACES)
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    lanes = {"critical": 10, "celery": 1}
    with letters_stage(request, tmp_path_factory, request.param, lanes=lanes) as stage:
        stage.start_worker(concurrency=2, queues=("celery", "critical"))
        yield stage


def send_again(stage: Stage, letter: Letter, how: How = How()) -> dict[Fate, int]:  # noqa: B008
    return replay(stage.tasks.app, [letter], how).fates


def state_of(stage: Stage, task_id: str) -> str:
    """Asked anew: a result object keeps the first final state that it saw."""
    return str(stage.tasks.app.AsyncResult(task_id).state)


def test_a_replay_resumes_at_the_failed_step_and_goes_on_with_what_follows(stage: Stage) -> None:
    """C37: id, headers, stamps, link and priority kept; retries start at 0."""
    gate = stage.gate("mended")
    sent = stage.tasks.breaks.apply_async(
        ("a", str(gate)),
        priority=3,
        headers={"own": "header"},
        link=stage.tasks.note.si(name="linked:a"),
    )
    letter = letter_of(stage, sent.id)
    gate.touch()

    assert send_again(stage, letter) == {Fate.RUN: 1}

    stage.effects.wait_count("linked:a", 1, DEADLINE_S)
    assert stage.effects.count("a") == 1
    assert stage.effects.count("first:a") == 1  # the step that was done is not done again
    assert stage.effects.count("linked:a") == 1
    again = stage.effects.lines("start:a")[1]
    assert again["task_id"] == sent.id
    assert again["replays"]["own"] == "header"
    assert again["replays"]["idem_replays"] == 1
    assert letters_of(stage.tasks.app).get(letter.id) is None
    assert [it.what for it in letters_of(stage.tasks.app).trail(letter.id)] == ["died", "replayed"]
    wait_until(lambda: state_of(stage, sent.id) == "SUCCESS", DEADLINE_S, "the result")


def test_a_replay_that_dies_again_is_the_same_letter(stage: Stage) -> None:
    sent = stage.tasks.breaks.delay("b")
    letter = letter_of(stage, sent.id)

    send_again(stage, letter)

    again = wait_until(lambda: letters_of(stage.tasks.app).get(letter.id), DEADLINE_S, "it")
    assert again.times == 2
    assert [it.what for it in again.history] == ["died", "replayed", "died"]
    assert again.message.headers["idem_replays"] == 1


def test_retries_begin_anew(stage: Stage) -> None:
    gate = stage.gate("retries")
    sent = stage.tasks.retries.delay("rr", str(gate))
    letter = letter_of(stage, sent.id)
    assert letter.retries == 2

    send_again(stage, letter)
    wait_until(lambda: stage.effects.count("start:rr") == 6, DEADLINE_S, "three more tries")

    assert [line["retries"] for line in stage.effects.lines("start:rr")] == [0, 1, 2, 0, 1, 2]


def test_a_mended_pill_runs_and_only_its_crashes_are_forgiven(stage: Stage) -> None:
    gate = stage.gate("pill")
    sent = stage.tasks.pill.delay("mp", str(gate))
    letter = letter_of(stage, sent.id)
    assert letter.reason is Reason.POISON
    gate.touch()

    send_again(stage, letter)

    stage.effects.wait_count("mp", 1, DEADLINE_S)
    assert stage.effects.count("start:mp") == 4


def test_a_rejected_message_is_sent_again(stage: Stage) -> None:
    """C37."""
    gate = stage.gate("rejects")
    sent = stage.tasks.rejects.delay("rj", str(gate))
    letter = letter_of(stage, sent.id)
    gate.touch()

    send_again(stage, letter)
    send_again(stage, letter)  # an entry that is gone runs nothing

    stage.effects.wait_count("rj", 1, DEADLINE_S)
    wait_until(lambda: queues_are_empty(stage), DEADLINE_S, "the ack")
    assert stage.effects.count("rj") == 1


def test_killed_between_publish_and_delete_it_is_sent_twice_and_done_once(stage: Stage) -> None:
    """What a SIGKILL at the worst instant leaves: the message published, the letter still there."""
    gate = stage.gate("twice")
    sent = stage.tasks.breaks.delay("tw", str(gate))
    letter = letter_of(stage, sent.id)
    gate.touch()

    send(stage.tasks.app, letter.message, headers_of(letter, How()))
    send(stage.tasks.app, letter.message, headers_of(letter, How()))
    stage.effects.wait_count("tw", 1, DEADLINE_S)
    assert wait_until(lambda: send_again(stage, letter).get(Fate.DONE), DEADLINE_S, "the end")
    wait_until(lambda: queues_are_empty(stage), DEADLINE_S, "all copies")

    assert stage.effects.count("tw") == 1
    assert letters_of(stage.tasks.app).get(letter.id) is None


def test_a_letter_whose_key_was_done_meanwhile_runs_nothing(stage: Stage) -> None:
    gate = stage.gate("meanwhile")
    first = stage.tasks.breaks.delay("mw", str(gate))
    letter = letter_of(stage, first.id)
    gate.touch()
    assert stage.tasks.breaks.delay("mw", str(gate)).get(timeout=DEADLINE_S) == "mw"

    assert dry_run(stage.tasks.app, [letter]).fates == {Fate.DONE: 1}
    assert send_again(stage, letter) == {Fate.DONE: 1}

    wait_until(lambda: state_of(stage, first.id) == "SUCCESS", DEADLINE_S, "the recorded result")
    assert stage.effects.count("mw") == 1


def test_a_revoked_key_is_not_replayed(stage: Stage) -> None:
    """C65 (d)."""
    gate = stage.gate("revoked")
    sent = stage.tasks.breaks.delay("rv", str(gate))
    letter = letter_of(stage, sent.id)
    gate.touch()
    store_of(stage.tasks.app).revoke(letter.key, 60_000)

    assert dry_run(stage.tasks.app, [letter]).fates == {Fate.REVOKED: 1}
    assert send_again(stage, letter) == {Fate.REVOKED: 1}
    assert stage.effects.count("rv") == 0
    assert letters_of(stage.tasks.app).get(letter.id) is not None


def test_a_canary_that_fails_stops_the_rest(stage: Stage) -> None:
    sent = [stage.tasks.breaks.delay(f"canary-{n}") for n in range(6)]
    letters = [letter_of(stage, each.id) for each in sent]

    report = replay(stage.tasks.app, letters, How(canary=2))

    assert report.stopped
    assert report.canary_failures == 2
    assert report.sent == 2
    assert sum(stage.effects.count(f"start:canary-{n}") for n in range(6)) == 8


def test_a_canary_that_lives_lets_the_rest_go(stage: Stage) -> None:
    gate = stage.gate("canary")
    sent = [stage.tasks.breaks.delay(f"bird-{n}", str(gate)) for n in range(4)]
    letters = [letter_of(stage, each.id) for each in sent]
    gate.touch()

    report = replay(stage.tasks.app, letters, How(canary=1))

    assert not report.stopped
    assert report.sent == 4
    for n in range(4):
        stage.effects.wait_count(f"bird-{n}", 1, DEADLINE_S)


def test_two_replays_at_once_send_each_letter_once(stage: Stage) -> None:
    app, gate = stage.tasks.app, stage.gate("two")
    sent = [stage.tasks.breaks.delay(f"two-{n}", str(gate)) for n in range(5)]
    letters = [letter_of(stage, each.id) for each in sent]
    for letter in letters[:2]:
        assert letters_of(app).take(letter.id, "the other operator", 60_000)

    report = replay(app, letters)

    assert report.fates == {Fate.TAKEN: 2, Fate.RUN: 3}


def test_a_letter_can_change_its_lane(stage: Stage) -> None:
    gate = stage.gate("lane")
    sent = stage.tasks.breaks.delay("ln", str(gate))
    letter = letter_of(stage, sent.id)
    gate.touch()

    send_again(stage, letter, How(lane="critical"))

    stage.effects.wait_count("ln", 1, DEADLINE_S)
    assert stage.effects.lines("start:ln")[1]["replays"]["idem_lane"] == "critical"


def test_edited_arguments_are_checked_and_run_under_their_own_key(stage: Stage) -> None:
    app, gate = stage.tasks.app, stage.gate("edit")
    sent = stage.tasks.breaks.delay("typo", str(gate))
    letter = letter_of(stage, sent.id)
    gate.touch()

    with pytest.raises(edit.NotEditable, match="does not take these arguments"):
        edit.prepare(app, letter, kwargs={"nobody": 1})
    change = edit.prepare(app, letter, args=["right", str(gate)])
    assert '-    "typo"' in change.diff
    assert '+    "right"' in change.diff
    assert (change.old_key, change.new_key) == (
        "letters.breaks:breaks:typo",
        "letters.breaks:breaks:right",
    )
    assert edit.save(app, change, "ann")
    edited = letters_of(app).get(letter.id)
    assert edited is not None
    assert edited.original == letter.message

    send_again(stage, edited)

    stage.effects.wait_count("right", 1, DEADLINE_S)
    assert stage.effects.count("typo") == 0
    assert sent.id == stage.effects.lines("start:right")[0]["task_id"]
    record = stage.record("letters.breaks:breaks:right")
    wait_until(
        lambda: (r := stage.record("letters.breaks:breaks:right")) and r.state is State.DONE,
        DEADLINE_S,
        lambda: f"the end: {record}",
    )


def test_a_chord_that_is_open_is_completed_by_a_replay(stage: Stage) -> None:
    """C52: the failed part is taken back, and the new one counted."""
    tasks, app = stage.tasks, stage.tasks.app
    gate, slow = stage.gate("chord"), stage.gate("chord-slow")
    header = [tasks.breaks.si("member", str(gate)), tasks.waits.si("slow", str(slow))]
    result = chord(header)(tasks.heard.si(name="completed"))
    [letter] = wait_until(
        lambda: letters_of(app).page(Filter(key="letters.breaks:breaks:member")), DEADLINE_S, "it"
    )
    # The letter is stored before Celery counts the part.
    wait_until(lambda: state_of(stage, letter.task_id) == "FAILURE", DEADLINE_S, "the part")
    gate.touch()
    assert send_again(stage, letter) == {Fate.RUN: 1}
    stage.effects.wait_count("member", 1, DEADLINE_S)
    slow.touch()

    stage.effects.wait_count("completed", 1, DEADLINE_S)
    assert result.get(timeout=DEADLINE_S) == "completed"


def test_a_chord_that_has_failed_refuses_the_replay(stage: Stage) -> None:
    """C52: it can't be completed any more; the task runs only when that is asked for."""
    tasks, app = stage.tasks, stage.tasks.app
    gate = stage.gate("late")
    body = tasks.heard.si(name="late body").on_error(tasks.heard.si(name="late failed"))
    chord([tasks.breaks.si("late", str(gate)), tasks.note.si(name="quick")])(body)
    stage.effects.wait_count("late failed", 1, DEADLINE_S)
    [letter] = letters_of(app).page(Filter(key="letters.breaks:breaks:late"))
    gate.touch()

    assert wait_until(
        lambda: dry_run(app, [letter]).fates == {Fate.CHORD_OVER: 1}, DEADLINE_S, "the end"
    )
    assert send_again(stage, letter) == {Fate.CHORD_OVER: 1}
    assert send_again(stage, letter, How(despite_chord=True)) == {Fate.RUN: 1}

    stage.effects.wait_count("late", 1, DEADLINE_S)
    wait_until(lambda: queues_are_empty(stage), DEADLINE_S, "the ack")
    assert stage.effects.count("late body") == 0
    assert stage.effects.count("late failed") == 1


def test_what_the_broker_wrote_stays_behind(stage: Stage) -> None:
    """C43: RabbitMQ takes a message with an old x-death for a cycle."""
    sent = stage.tasks.breaks.apply_async(
        ("hd",), headers={"x-death": [{"count": 3}], "x-delivery-count": 19, "own": 1}
    )
    letter = letter_of(stage, sent.id)
    headers: dict[str, Any] = headers_of(letter, How())

    assert letter.message.headers["x-death"] == [{"count": 3}]
    assert not {"x-death", "x-delivery-count", "idem_waits"} & set(headers)
    assert headers["own"] == 1
