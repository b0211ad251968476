"""Letters on a broker's queue, and letters that the broker itself made (C43)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Exchange, Queue

from celery_idem.deadletters import moving
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Reason
from celery_idem.deadletters.replay import Fate, How, replay
from tests.deadletters.looking import DEADLINE_S, letter_of
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def routed(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    env: dict[str, Any] = {"dead_letters": {"route": "queue", "queue": "dead-{lane}"}}
    with _stage(request, tmp_path_factory, request.param, env) as stage:
        yield stage


@pytest.fixture
def rabbit_stage(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with _stage(request, tmp_path_factory, "rabbitmq", {"lanes": {"celery": 1}}) as stage:
        yield stage


def _stage(request: Any, factory: Any, broker: str, idem: dict[str, Any], **env: str) -> Any:
    if broker == "rabbitmq":
        rabbit = request.getfixturevalue("rabbitmq")
        if reason := rabbit.missing_vhost():
            pytest.skip(reason)
        redis = request.getfixturevalue("redis_url")
        env |= {"TEST_BROKER": rabbit.url, "TEST_BACKEND": redis}
        idem = {**idem, "store": redis}
    return open_stage(factory, "tests.apps.letters", TEST_IDEM=json.dumps(idem), **env)


def depth(stage: Stage, queue: str) -> int:
    with stage.tasks.app.connection_for_read() as connection:
        return int(Queue(queue)(connection.default_channel).queue_declare(passive=True)[1])


def test_letters_go_to_a_queue_and_are_collected_from_it(routed: Stage) -> None:
    app, gate = routed.tasks.app, routed.gate("routed")
    routed.start_worker()
    sent = routed.tasks.breaks.delay("q", str(gate))
    with pytest.raises(RuntimeError):
        sent.get(timeout=DEADLINE_S)
    gate.touch()
    assert letters_of(app).count(Filter()) == 0

    assert moving.collect(app, "dead-none") == 1
    assert moving.collect(app, "dead-none") == 0

    letter = letter_of(routed, sent.id)
    assert letter.reason is Reason.FAILURE
    assert (letter.task, letter.key) == ("letters.breaks", "letters.breaks:breaks:q")
    assert letter.fault.place == "apps.letters:breaks"
    assert json.loads(letter.message.body)[0] == ["q", str(gate)]
    assert "idem_letter" not in letter.message.headers
    assert letter.message.queue == "celery"

    assert replay(app, [letter]).fates == {Fate.RUN: 1}
    routed.effects.wait_count("q", 1, DEADLINE_S)
    assert routed.effects.count("first:q") == 1


@pytest.mark.rabbitmq
def test_what_rabbitmq_dead_letters_is_collected_with_its_death_and_replayed_without(
    rabbit_stage: Stage,
) -> None:
    """C43: TTL sends it to the DLX queue; the replay drops what belongs to the broker."""
    tasks, app = rabbit_stage.tasks, rabbit_stage.tasks.app
    short = Queue(
        "short",
        Exchange("", type="direct"),
        routing_key="short",
        queue_arguments={
            "x-message-ttl": 10,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "graveyard",
        },
    )
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        for queue in (Queue("graveyard"), short):
            queue(channel).queue_declare()
    with app.producer_or_acquire() as producer:
        body = [["x"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
        producer.publish(body, serializer="json", exchange="", routing_key="short",
                         headers={"task": "letters.good", "id": "by-the-broker", "lang": "py"},
                         expiration=None)  # fmt: skip
    wait_until(lambda: depth(rabbit_stage, "graveyard") == 1, DEADLINE_S, "the broker's TTL")

    assert moving.collect(app, "graveyard") == 1

    letter = letter_of(rabbit_stage, "by-the-broker")
    assert letter.reason is Reason.BROKER
    assert letter.message.headers["x-death"][0]["reason"] == "expired"
    assert letter.message.queue == "short"
    assert letter.key == "letters.good:good:x"

    rabbit_stage.start_worker()
    assert replay(app, [letter], How(lane="celery")).fates == {Fate.RUN: 1}
    rabbit_stage.effects.wait_count("x", 1, DEADLINE_S)
    assert tasks.good.delay("after").get(timeout=DEADLINE_S) == "after"


@pytest.mark.rabbitmq
def test_capture_and_replay_work_on_rabbitmq(rabbit_stage: Stage) -> None:
    """C20, C38, C43: a pill, an unreadable body, a refused type and a failure with retries."""
    tasks, app = rabbit_stage.tasks, rabbit_stage.tasks.app
    rabbit_stage.start_worker(concurrency=2)
    gate = rabbit_stage.gate("rabbit")
    pill = tasks.pill.delay("rp", str(gate))
    failing = tasks.retries.delay("rr", str(gate))
    with app.producer_or_acquire() as producer:
        common = {"exchange": "", "routing_key": "celery", "content_encoding": "utf-8"}
        for name, kind in (
            ("half", "application/json"),
            ("pickle", "application/x-python-serialize"),
        ):
            producer.publish(b"{half", content_type=kind,
                             headers={"task": "letters.good", "id": name}, **common)  # fmt: skip

    assert letter_of(rabbit_stage, pill.id).reason is Reason.POISON
    assert rabbit_stage.effects.count("start:rp") == 3
    assert letter_of(rabbit_stage, "half").reason is Reason.UNDECODABLE
    assert letter_of(rabbit_stage, "pickle").reason is Reason.UNDECODABLE
    assert letter_of(rabbit_stage, failing.id).reason is Reason.RETRIES_EXHAUSTED
    gate.touch()

    letters = [letter_of(rabbit_stage, each.id) for each in (pill, failing)]
    assert replay(app, letters).fates == {Fate.RUN: 2}
    for name in ("rp", "rr"):
        rabbit_stage.effects.wait_count(name, 1, DEADLINE_S)
    wait_until(lambda: depth(rabbit_stage, "celery") == 0, DEADLINE_S, "an empty queue")


@pytest.mark.rabbitmq
def test_retries_with_native_delay_on_quorum_queues_are_not_taken_for_a_cycle(
    request: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """C43: a delayed retry travels through dead-lettering queues; RabbitMQ before 4.0.1 drops what
    has been through them before. Four attempts, then a letter, whose replay is not dropped."""
    conf = {
        "task_default_queue_type": "quorum",
        "task_default_exchange_type": "topic",
        "broker_transport_options": {"confirm_publish": True},
        "worker_detect_quorum_queues": True,
    }
    with _stage(request, tmp_path_factory, "rabbitmq", {}, TEST_CONF=json.dumps(conf)) as stage:
        stage.start_worker()
        gate = stage.gate("quorum")
        sent = stage.tasks.delayed.delay("q", str(gate))

        letter = letter_of(stage, sent.id)
        assert letter.reason is Reason.RETRIES_EXHAUSTED
        assert stage.effects.count("start:q") == 4
        assert depth(stage, "celery_delayed_1") == 0  # RabbitMQ's delay was there, and is empty
        assert any("celery_delayed" in str(it) for it in _deaths(letter))
        gate.touch()

        assert replay(stage.tasks.app, [letter]).fates == {Fate.RUN: 1}
        stage.effects.wait_count("q", 1, DEADLINE_S)
        assert stage.effects.count("start:q") == 5


def _deaths(letter: Any) -> list[Any]:
    return list(letter.message.headers.get("x-death") or ())
