"""What redis-streams:// itself sets aside becomes a letter: by a worker, or by ``dlq collect``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from celery_idem.cli.dlq import dlq
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Reason
from celery_idem.deadletters.replay import Fate, replay
from celery_idem.transport import buried
from tests.deadletters.looking import DEADLINE_S
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage

RUBBISH = {b"plain text", b"[1, 2]", b"\xff\x00"}


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    conf = json.dumps({"broker_transport_options": {"max_deliveries": 2, "requeue_delay_s": 0.05}})
    with open_stage(
        tmp_path_factory, "tests.apps.letters", TEST_SCHEME="redis-streams", TEST_CONF=conf
    ) as stage:
        yield stage


def throw_in(stage: Stage) -> None:
    with stage.server.client() as client:
        for raw in RUBBISH:
            client.xadd("rs:{celery}:0", {"m": raw})


def waits_there(stage: Stage) -> int:
    with stage.server.client() as client:
        return int(client.xlen("rs:{celery}:dead"))


def collect(stage: Stage, *queues: str) -> str:
    found = SimpleNamespace(app=stage.tasks.app)
    result = CliRunner().invoke(dlq, ["collect", *queues], obj=found)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def delivered_too_often(stage: Stage, name: str) -> str:
    """Send a job, and hand it back as often as the broker allows."""
    sent = stage.tasks.good.apply_async((name,), link_error=stage.tasks.heard.si(name="told"))
    with stage.tasks.app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        for _ in range(2):
            queue.get(timeout=DEADLINE_S).requeue()
        with pytest.raises(queue.Empty):
            queue.get(timeout=1)
        queue.close()
    return str(sent.id)


def test_what_nobody_can_read_is_collected_as_it_is(stage: Stage) -> None:
    """C20"""
    throw_in(stage)
    stage.start_worker()
    assert stage.tasks.good.delay("after").get(timeout=DEADLINE_S) == "after"
    wait_until(lambda: waits_there(stage) == len(RUBBISH), DEADLINE_S, "the broker's verdict")

    said = collect(stage)

    assert f"{len(RUBBISH)} collected from what was set aside of celery" in said
    letters = letters_of(stage.tasks.app).page(Filter())
    assert {it.message.body for it in letters} == RUBBISH
    assert {it.reason for it in letters} == {Reason.UNDECODABLE}
    assert waits_there(stage) == 0
    assert "collected from what was set aside" not in collect(stage)


def test_what_was_delivered_too_often_is_a_letter_that_can_be_sent_again(stage: Stage) -> None:
    task_id = delivered_too_often(stage, "often")
    assert waits_there(stage) == 1

    collect(stage, "celery")

    [letter] = letters_of(stage.tasks.app).page(Filter())
    assert (letter.reason, letter.task, letter.task_id) == (Reason.BROKER, "letters.good", task_id)
    assert letter.key == "letters.good:good:often"
    assert letter.fault.message == "set aside by the broker: poison, after 2 deliveries"
    assert stage.tasks.app.AsyncResult(task_id).state == "FAILURE"

    stage.start_worker()
    stage.effects.wait_count("told", 1, DEADLINE_S)
    assert replay(stage.tasks.app, [letter]).fates == {Fate.RUN: 1}
    stage.effects.wait_count("often", 1, DEADLINE_S)
    wait_until(
        lambda: stage.tasks.app.AsyncResult(task_id).state == "SUCCESS", DEADLINE_S, "the result"
    )


def test_a_worker_brings_it_over_by_itself(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_QUICK_SWEEP", "1")
    throw_in(stage)
    stage.start_worker()

    wait_until(
        lambda: letters_of(stage.tasks.app).count(Filter()) == len(RUBBISH), DEADLINE_S, "letters"
    )

    assert waits_there(stage) == 0


def test_an_interrupted_collection_begun_again_stores_nothing_twice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored, and not yet removed: what a SIGKILL at the worst instant leaves."""
    delivered_too_often(stage, "twice")
    with stage.tasks.app.connection_for_read() as connection:
        channel = connection.default_channel
        kept: list[Any] = channel.raw.xrange("rs:{celery}:dead")
        buried.collect(stage.tasks.app, channel, "celery")
        channel.raw.xadd("rs:{celery}:dead", kept[0][1])

        assert buried.collect(stage.tasks.app, channel, "celery") == 1

    assert letters_of(stage.tasks.app).count(Filter()) == 1


def test_two_workers_do_not_bring_it_over_at_once(stage: Stage) -> None:
    """Or a message that died once would be a letter that died twice."""
    delivered_too_often(stage, "once")
    app = stage.tasks.app
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        consumer = SimpleNamespace(app=app, connection_errors=())
        channel.raw.set("rs:{celery}:dead:look", b"", px=60_000)  # another worker looks
        buried._sweep(consumer, channel)
        assert letters_of(app).count(Filter()) == 0

        channel.raw.delete("rs:{celery}:dead:look")
        buried._sweep(consumer, channel)
        buried._sweep(consumer, channel)

    [letter] = letters_of(app).page(Filter())
    assert letter.times == 1
