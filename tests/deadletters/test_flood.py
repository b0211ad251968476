"""The flood breaker: a task that floods the dead letters is not fed for a while."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from celery_idem import signals
from celery_idem.cli.dlq import dlq
from celery_idem.core.settings import Settings
from celery_idem.deadletters import flood, post
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Letter, Message, Reason, letter_id, named_fault
from celery_idem.lanes.status import look
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage

DEADLINE_S = 90
MOST = 3
SENT = 40
LONG_S, SHORT_S = 3600, 2

#: all of them in one run take a minute
BROKERS = [
    "redis",
    pytest.param("redis-streams", marks=pytest.mark.slow),
    pytest.param("rabbitmq", marks=(pytest.mark.rabbitmq, pytest.mark.slow)),
]


def letter(number: int, task: str = "letters.good", reason: Reason = Reason.FAILURE) -> Letter:
    message = Message(body=b"[[], {}, {}]", headers={"id": f"k-{number}"}, queue="celery")
    return Letter(
        id=letter_id(f"k-{number}", message),
        reason=reason,
        message=message,
        task=task,
        task_id=f"k-{number}",
        fault=named_fault("ValueError", "no", "…", "shop:pay"),
    )


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Any:
    counts: list[int] = []

    def on_flood(sender: Any, count: int, **_: Any) -> None:
        counts.append(count)

    signals.flood.connect(on_flood, weak=False)
    yield counts
    signals.flood.disconnect(on_flood)


def told_by(load_app: Any, url: str, letters: list[Letter], **settings: Any) -> Any:
    idem = json.dumps({"dead_letters": {"flood_per_minute": 2, "flood_pause_s": 0, **settings}})
    app = load_app("tests.apps.letters", TEST_BROKER=url, TEST_IDEM=idem).app
    for each in letters:
        post.put(app, each)
    return app


def test_a_flood_is_told_once_by_a_process(
    redis_url: str, effects: Any, load_app: Any, heard: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    told_by(load_app, redis_url, [letter(number) for number in range(6)])

    assert heard == [3]
    assert caplog.text.count("flood: 3 letters of letters.good within a minute") == 1


def test_a_flood_is_told_again_when_it_goes_on(
    redis_url: str, effects: Any, load_app: Any, heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flood, "TOLD_AGAIN_S", 0.0)

    told_by(load_app, redis_url, [letter(number) for number in range(4)])

    assert heard == [3, 4]


def test_letters_of_other_tasks_are_no_flood(
    redis_url: str, effects: Any, load_app: Any, heard: list[int]
) -> None:
    told_by(load_app, redis_url, [letter(number, f"letters.{number}") for number in range(6)])

    assert heard == []


def test_garbage_is_counted_by_its_reason(
    redis_url: str, effects: Any, load_app: Any, heard: list[int]
) -> None:
    """A message that names no task is not counted with all the others."""
    others = [letter(number, f"letters.{number}") for number in range(5)]
    garbage = [letter(10 + number, "", Reason.UNDECODABLE) for number in range(3)]

    told_by(load_app, redis_url, [*others, *garbage])

    assert heard == [3]


def test_expired_messages_pause_nothing(
    redis_url: str, effects: Any, load_app: Any, heard: list[int]
) -> None:
    """Those that wait would expire, too."""
    told_by(load_app, redis_url, [letter(n, reason=Reason.EXPIRED) for n in range(6)])

    assert heard == []


def stage_of(
    factory: Any, broker: str, pause_s: int, lanes: bool, request: pytest.FixtureRequest
) -> Any:
    idem: dict[str, Any] = {"dead_letters": {"flood_per_minute": MOST, "flood_pause_s": pause_s}}
    if lanes:
        idem["lanes"] = {"bad": 5, "celery": 1}
    env = {"TEST_SCHEME": broker}
    if broker == "rabbitmq":
        rabbit, redis = (request.getfixturevalue(it) for it in ("rabbitmq", "redis_url"))
        if reason := rabbit.missing_vhost():
            pytest.skip(reason)
        env = {"TEST_BROKER": rabbit.url, "TEST_BACKEND": redis}
        idem["store"] = redis
    return open_stage(factory, "tests.apps.letters", TEST_IDEM=json.dumps(idem), **env)


def count(stage: Stage) -> int:
    return letters_of(stage.tasks.app).count(Filter())


def inspected(stage: Stage, worker: Any, command: str) -> Any:
    inspect = stage.tasks.app.control.inspect([worker.hostname], timeout=3, limit=1)
    said = wait_until(lambda: inspect._request(command), what=f"an answer to {command}")
    return said.get(worker.hostname)


def floods(stage: Stage, *words: str, says: str) -> None:
    """``dlq floods …`` until the workers have answered so: each call waits its whole time."""

    def output() -> str:
        result = CliRunner().invoke(dlq, ("floods", *words), obj=SimpleNamespace(app=app))
        return f"{result.output} (exit code {result.exit_code})"

    app, seen = stage.tasks.app, [""]

    def look() -> bool:
        seen[0] = output()
        return says in seen[0]

    wait_until(look, DEADLINE_S, lambda: f"{says!r}; seen: {seen[0]}")


def flood_it(stage: Stage, gate: Any) -> None:
    """Many letters of one task, from a queue of their own."""
    for number in range(SENT):
        stage.tasks.breaks.apply_async((f"b{number}", str(gate)), queue="bad")


@pytest.mark.parametrize("lanes", [True, False], ids=["lanes", "queues"])
@pytest.mark.parametrize("broker", BROKERS)
def test_a_flood_pauses_its_queue_and_nothing_else_until_a_person_ends_it(
    tmp_path_factory: pytest.TempPathFactory,
    broker: str,
    lanes: bool,
    request: pytest.FixtureRequest,
) -> None:
    with stage_of(tmp_path_factory, broker, LONG_S, lanes, request) as stage:
        gate = stage.gate("flood")
        flood_it(stage, gate)
        worker = stage.start_worker(queues=("bad", "celery"), concurrency=2)
        worker.wait_log(r"(lane|queue) 'bad' is paused for 3600 s: letters\.breaks floods")
        wait_until(lambda: inspected(stage, worker, "floods"), DEADLINE_S, "a paused queue")

        # another queue is served, and what was not fetched waits in the broker
        for number in range(5):
            assert stage.tasks.good.delay(f"g{number}").get(timeout=DEADLINE_S) == f"g{number}"
        letters = count(stage)
        assert MOST < letters < SENT
        [paused] = inspected(stage, worker, "floods")
        assert (paused["queue"], paused["kind"]) == ("bad", "letters.breaks")
        assert paused["lane"] == ("bad" if lanes else "")
        floods(stage, says="letters.breaks")
        if lanes:
            note = wait_until(lambda: _note_of_bad(stage), DEADLINE_S, "a report of the lanes")
            assert re.fullmatch(
                r"paused on 1 of 1: flood of letters\.breaks, until \d\d:\d\d:\d\d", note
            )
        assert count(stage) == letters
        assert worker.log_text().count("'bad' is paused") == 1

        gate.touch()
        floods(stage, "--end", "bad", says=f"{worker.hostname}: bad")

        stage.effects.wait_for(
            lambda it: sum(it.count(f"b{n}") for n in range(SENT)) == SENT - letters,
            DEADLINE_S,
            "the rest to be done",
        )
        assert count(stage) == letters
        assert inspected(stage, worker, "floods") == []
        floods(stage, says="no queue is paused by a flood; 1 worker answered")
        floods(stage, "--end", "all", says="nothing was paused")


@pytest.mark.parametrize("lanes", [True, False], ids=["lanes", "queues"])
@pytest.mark.parametrize("broker", BROKERS)
def test_a_paused_queue_comes_back_by_itself(
    tmp_path_factory: pytest.TempPathFactory,
    broker: str,
    lanes: bool,
    request: pytest.FixtureRequest,
) -> None:
    with stage_of(tmp_path_factory, broker, SHORT_S, lanes, request) as stage:
        gate = stage.gate("flood")
        flood_it(stage, gate)
        worker = stage.start_worker(queues=("bad", "celery"))
        worker.wait_log(r"'bad' is paused for 2 s")

        gate.touch()

        worker.wait_log(r"'bad' is served again, after a flood of letters\.breaks", DEADLINE_S)
        stage.effects.wait_for(
            lambda it: sum(it.count(f"b{n}") for n in range(SENT)) + count(stage) == SENT,
            DEADLINE_S,
            "all to be done or dead",
        )


def test_a_worker_that_starts_into_a_flood_pauses_at_the_first_letter(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    """Nothing is kept of a pause but the letters, and they tell a new worker at once."""
    with stage_of(tmp_path_factory, "redis", LONG_S, True, request) as stage:
        flood_it(stage, stage.gate("flood"))
        first = stage.start_worker(queues=("bad", "celery"))
        first.wait_log(r"'bad' is paused")
        first.term()
        first.wait_exit()
        before = count(stage)

        second = stage.start_worker(queues=("bad", "celery"))
        second.wait_log(r"'bad' is paused")
        assert stage.tasks.good.delay("after").get(timeout=DEADLINE_S) == "after"

        assert before < count(stage) <= before + 3  # what runs and what was on its way


def test_an_operators_pause_is_not_ended_by_the_breaker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    with stage_of(tmp_path_factory, "redis", LONG_S, True, request) as stage:
        flood_it(stage, stage.gate("flood"))
        worker = stage.start_worker(queues=("bad", "celery"))
        worker.wait_log(r"'bad' is paused")

        stage.tasks.app.control.broadcast(
            "lane_pause", arguments={"lane": "bad"}, reply=True, timeout=20, limit=1
        )
        assert inspected(stage, worker, "floods") == []
        floods(stage, "--end", "bad", says=f"{worker.hostname}: bad")

        assert inspected(stage, worker, "lanes")["lanes"]["bad"]["paused"] is True


def test_a_worker_without_remote_control_says_that_it_will_not_hear(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("TEST_CONF", json.dumps({"worker_enable_remote_control": False}))
    with stage_of(tmp_path_factory, "redis", LONG_S, False, request) as stage:
        worker = stage.start_worker()

        worker.wait_log(r"worker_enable_remote_control is off: this worker will not hear")


def _note_of_bad(stage: Stage) -> str | None:
    settings = Settings.from_dict({"lanes": {"bad": 5, "celery": 1}})
    lanes = look(stage.tasks.app, settings, timeout_s=2).lanes
    return next((it.note for it in lanes if it.name == "bad" and it.workers), None)
