"""What a worker meets that needs a server, a setting or a deploy of its own (C19, C37, C47)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import chord, signature

from celery_idem.binding import store_of
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Reason
from tests.deadletters.looking import DEADLINE_S, letter_of, queues_are_empty
from tests.support.clock import ClockSkew
from tests.support.waiting import wait_until
from tests.tasks.stage import open_stage


def test_an_unknown_task_of_a_chord_fails_it_and_keeps_the_message(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """C19, second part; the grace is over at once."""
    settings = json.dumps({"dead_letters": {"unknown_task_grace_s": 0}})
    with open_stage(tmp_path_factory, "tests.apps.letters", TEST_IDEM=settings) as stage:
        stage.start_worker()
        tasks = stage.tasks
        unknown = signature("letters.new", args=("n",), app=tasks.app, immutable=True)
        body = tasks.heard.si(name="body").on_error(tasks.heard.si(name="failed"))
        result = chord([tasks.note.si(name="known"), unknown])(body)

        stage.effects.wait_count("failed", 1, DEADLINE_S)
        wait_until(lambda: result.state == "FAILURE", DEADLINE_S, "the chord's failure")
        letters = letters_of(tasks.app).page(Filter())
        assert [(it.reason, it.task) for it in letters] == [(Reason.UNKNOWN_TASK, "letters.new")]
        assert stage.effects.count("body") == 0


def test_a_rolling_deploy_loses_no_new_task(tmp_path_factory: pytest.TempPathFactory) -> None:
    """C19: the old worker meets a task that only the new code knows."""
    with open_stage(tmp_path_factory, "tests.apps.letters") as stage:
        old = stage.start_worker()
        stage.tasks.app.send_task("letters.new", ("from the new code",))
        old.wait_log("unknown task letters.new", DEADLINE_S)
        old.term()
        old.wait_exit()
        stage.start_worker(env={"TEST_NEW_CODE": "1"})

        stage.effects.wait_count("from the new code", 1, DEADLINE_S)
        assert letters_of(stage.tasks.app).count(Filter()) == 0
        assert stage.effects.count("from the new code") == 1


def test_an_unknown_task_does_not_spin(tmp_path_factory: pytest.TempPathFactory) -> None:
    """C47: put off with a growing delay, then a letter when its grace is over."""
    settings = json.dumps({"dead_letters": {"unknown_task_grace_s": 4}})
    with open_stage(tmp_path_factory, "tests.apps.letters", TEST_IDEM=settings) as stage:
        worker = stage.start_worker(loglevel="INFO")
        sent = stage.tasks.app.send_task("letters.new", ("n",))

        letter = letter_of(stage, sent.id)
        assert letter.reason is Reason.UNKNOWN_TASK
        assert letter.task == "letters.new"
        assert worker.log_text().count("unknown task letters.new") <= 4
        wait_until(lambda: queues_are_empty(stage), DEADLINE_S, "the ack")


def test_the_grace_of_an_unknown_task_is_no_clocks_business(
    tmp_path_factory: pytest.TempPathFactory, clock_skew: ClockSkew
) -> None:
    """Found by chaos: a worker whose clock was 41 minutes early made letters at first sight."""
    settings = json.dumps({"dead_letters": {"unknown_task_grace_s": 600}})
    with open_stage(tmp_path_factory, "tests.apps.letters", TEST_IDEM=settings) as stage:
        worker = stage.start_worker(loglevel="INFO", env=clock_skew.env)
        stage.tasks.app.send_task("letters.new", ("n",))
        worker.wait_log(r"unknown task letters.new: put off for 1\.0 s", DEADLINE_S)

        clock_skew.set(+3600)

        worker.wait_log(r"put off for 2\.0 s; a letter in 599 s", DEADLINE_S)
        assert "dead letter" not in worker.log_text()


def test_plain_tasks_may_opt_in(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = json.dumps({"dead_letters": {"all_tasks": True}})
    with open_stage(tmp_path_factory, "tests.apps.letters", TEST_IDEM=settings) as stage:
        stage.start_worker()
        sent = stage.tasks.plain_breaks.delay("pb")

        letter = letter_of(stage, sent.id)
        assert letter.reason is Reason.FAILURE
        assert letter.fault.place == "apps.letters:plain_breaks"
        assert json.loads(letter.message.body)[0] == ["pb"]

        lost = letter_of(stage, stage.tasks.plain_pill.delay("pp").id)
        assert lost.reason is Reason.WORKER_LOST
        assert lost.fault.error_type.endswith("WorkerLostError")
        assert stage.effects.count("start:pp") == 1


def test_a_letter_that_cannot_be_stored_sends_the_message_back(
    tmp_path_factory: pytest.TempPathFactory, make_redis: Any
) -> None:
    """Before the ack, and with a growing delay: no hot loop (C47)."""
    elsewhere = make_redis("letters")
    settings = json.dumps({"dead_letters": {"store": elsewhere.url()}, "store_patience_s": 0})
    with open_stage(tmp_path_factory, "tests.apps.letters", TEST_IDEM=settings) as stage:
        stage.start_worker(concurrency=1)
        elsewhere.kill()
        sent = stage.tasks.breaks.delay("back")
        stage.effects.wait_count("start:back", 3, DEADLINE_S)
        elsewhere.start()

        assert letter_of(stage, sent.id).reason is Reason.FAILURE
        starts = [line["monotonic"] for line in stage.effects.lines("start:back")]
        assert starts[2] - starts[1] > starts[1] - starts[0]
        assert store_of(stage.tasks.app).get("letters.breaks:breaks:back") is not None
