"""A replay of 10,000 letters, killed at 20 random instants: each effect once, none lost."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from typing import Any

import pytest

from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Letter, Message, Reason, letter_id, named_fault
from tests.deadletters.stages import PLACES, letters_stage
from tests.support.processes import guarded
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage

#: in Redis as many as an operator may find; a database is as many times slower
LETTERS = {"redis": 10_000, "sqlite": 2_000, "postgres": 2_000, "mariadb": 2_000}
KILLS = 20
DEADLINE_S = 240


def put_letters(stage: Stage, count: int) -> None:
    store: Any = letters_of(stage.tasks.app)
    for number in range(count):
        task_id, name = f"replayed-{number}", f"effect-{number}"
        embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
        message = Message(
            body=json.dumps([[name], {}, embed]).encode(),
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": "letters.good", "id": task_id, "lang": "py", "retries": 0},
            properties={"correlation_id": task_id},
            routing_key="celery",
            queue="celery",
        )
        store.put(
            Letter(
                id=letter_id(task_id, message),
                reason=Reason.FAILURE,
                message=message,
                task="letters.good",
                task_id=task_id,
                key=f"letters.good:good:{name}",
                fault=named_fault("GatewayDown", "…", place="shop:pay"),
            )
        )


def start_replay(stage: Stage) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "celery", "-A", "tests.apps.letters:app"]
    command = guarded([*argv, "dlq", "replay", "--all", "--json"])
    return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.parametrize("place", PLACES)
def test_two_operators_at_once_send_each_letter_once(
    place: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two processes, the same 60 letters."""
    with letters_stage(request, tmp_path_factory, place) as stage:
        put_letters(stage, 60)

        both = [start_replay(stage) for _ in range(2)]
        reports = [json.loads(each.communicate(timeout=DEADLINE_S)[0]) for each in both]

        assert sum(it["sent"] for it in reports) == 60
        assert letters_of(stage.tasks.app).count(Filter()) == 0
        with stage.server.client() as client:
            sent = [json.loads(it)["headers"]["id"] for it in client.lrange("celery", 0, -1)]
        assert sorted(sent) == sorted(f"replayed-{number}" for number in range(60))


@pytest.mark.slow
@pytest.mark.timeout(590)
@pytest.mark.parametrize("place", PLACES)
def test_killed_twenty_times_each_effect_is_once(
    place: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance, count = random.Random(11), LETTERS[place]
    with letters_stage(request, tmp_path_factory, place) as stage:
        put_letters(stage, count)
        store = letters_of(stage.tasks.app)
        stage.start_worker(concurrency=2)
        assert store.count(Filter()) == count

        for _ in range(KILLS):
            replay = start_replay(stage)
            target = store.count(Filter()) - chance.randrange(1, count // 33)
            wait_until(
                lambda target=target: store.count(Filter()) <= target, DEADLINE_S, "progress"
            )
            replay.send_signal(signal.SIGKILL)
            replay.communicate(timeout=60)
        assert store.count(Filter()) > count // 4  # every kill was in the middle

        report: dict[str, Any] = {}

        def all_sent() -> bool:
            with start_replay(stage) as last:
                report.update(json.loads(last.communicate(timeout=DEADLINE_S)[0]))
            return store.count(Filter()) == 0

        wait_until(all_sent, DEADLINE_S, lambda: f"the rest: {report}")

        names = {f"effect-{number}" for number in range(count)}
        wait_until(lambda: {*stage.effects.keys()} >= names, DEADLINE_S, "every effect")
        with stage.server.client() as client:
            wait_until(lambda: not client.llen("celery"), DEADLINE_S, "an empty queue")
            wait_until(lambda: not client.hlen("unacked"), DEADLINE_S, "the acks")
        assert len(stage.effects.keys()) == count
