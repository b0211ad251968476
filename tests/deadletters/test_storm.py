"""Jobs sent = done + dead letters, each once, nothing in between: whatever happens to workers and
to Redis meanwhile.

On kombu's own Redis transport a few are missing, and no more than C15 allows: a message that is
popped and not yet written down is nowhere. That is one for each worker killed, and one for each
worker that waited when Redis was killed."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from celery_idem.core.record import State
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Reason
from tests.deadletters.looking import queues_are_empty
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage

JOBS = 2000
WORKERS = 2
#: a worker is killed so often, in seconds
KILL_EVERY_S = 5.0
#: Redis is restarted after so many of the jobs have ended
RESTARTS_AT = (JOBS // 4, JOBS // 2)
DEADLINE_S = 420


def kind_of(number: int) -> str:
    """10 % fail for ever, 5 % kill their child, 2 % are unknown, 1 % are garbage."""
    part = number % 100
    return (
        "breaks" if part < 10
        else "pill" if part < 15
        else "unknown" if part < 17
        else "garbage" if part < 18
        else "good"
    )  # fmt: skip


def send(stage: Stage, number: int) -> None:
    kind, name, tasks = kind_of(number), f"{kind_of(number)}-{number}", stage.tasks
    if kind == "unknown":
        tasks.app.send_task("letters.nobody_knows", (name,), task_id=name)
    elif kind == "garbage":
        with tasks.app.producer_or_acquire() as producer:
            producer.publish(
                b"{half a body",
                exchange="",
                routing_key="celery",
                content_type="application/json",
                content_encoding="utf-8",
                headers={"task": "letters.good", "id": name},
            )
    else:
        getattr(tasks, kind).apply_async((name,), task_id=name)


def ended(stage: Stage) -> tuple[set[str], set[str]]:
    """Names of the jobs that are done, and of those that are letters."""
    done = {name for name in stage.effects.keys() if name.startswith("good-")}  # noqa: SIM118
    letters = {letter.task_id for letter in letters_of(stage.tasks.app).walk(Filter())}
    return done, letters


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", ["redis-streams", "redis"])
def test_sent_is_done_plus_dead(tmp_path_factory: pytest.TempPathFactory, scheme: str) -> None:
    settings = json.dumps({
        "dead_letters": {"unknown_task_grace_s": 10},
        "max_crashes": 3,
        "store_patience_s": 30,
    })  # fmt: skip
    with open_stage(
        tmp_path_factory, "tests.apps.letters", durable=True, TEST_IDEM=settings,
        TEST_SCHEME=scheme,
    ) as stage:  # fmt: skip
        for _ in range(WORKERS):
            stage.start_worker(concurrency=2)
        for number in random.Random(5).sample(range(JOBS), JOBS):
            send(stage, number)

        names = {f"{kind_of(number)}-{number}" for number in range(JOBS)}
        kills, restarts = _disturb(stage, names)

        done, letters = wait_until(
            lambda: _all_that_can_end(stage, names, scheme),
            DEADLINE_S,
            lambda: f"all to end; open: {_open(stage, names)}",
        )
        lost = names - done - letters
        assert len(lost) <= (kills + WORKERS * restarts if scheme == "redis" else 0)
        assert restarts == len(RESTARTS_AT)
        assert kills >= 3
        assert not done & letters
        for name in done:
            wait_until(lambda name=name: _is_recorded(stage, name), DEADLINE_S, f"{name} recorded")
        # A body that is killed between its effect and its record runs again: no more than that.
        doubled = len(stage.effects.lines()) - len({*_seen(stage)}) - _starts_again(stage)
        assert doubled <= kills * 4
        (tmp_path_factory.getbasetemp() / f"storm-{scheme}.txt").write_text(
            f"{scheme}: {JOBS} sent = {len(done)} done + {len(letters)} letters + {len(lost)} lost "
            f"({', '.join(sorted(lost))}); {kills} workers killed, "
            f"Redis restarted {restarts} times; {doubled} bodies killed after their effect\n"
        )
        store = letters_of(stage.tasks.app)
        expected = {
            kind: sum(kind_of(it) == kind for it in range(JOBS)) - _count(lost, kind)
            for kind in ("breaks", "pill", "unknown", "garbage")
        }
        assert store.count(Filter()) == sum(expected.values())
        assert store.count(Filter(reason=Reason.UNKNOWN_TASK)) == expected["unknown"]
        assert store.count(Filter(reason=Reason.UNDECODABLE)) == expected["garbage"]
        assert store.count(Filter(task="letters.breaks")) == expected["breaks"]
        assert store.count(Filter(task="letters.pill")) == expected["pill"]


def _all_that_can_end(
    stage: Stage, names: set[str], scheme: str
) -> tuple[set[str], set[str]] | None:
    """Done and letters, once they are all; on stock Redis, once nothing is in any queue or hand."""
    idle = scheme == "redis" and queues_are_empty(stage)
    done, letters = ended(stage)
    return (done, letters) if idle or done | letters == names else None


def _count(names: set[str], kind: str) -> int:
    return sum(name.startswith(f"{kind}-") for name in names)


def _disturb(stage: Stage, names: set[str]) -> tuple[int, int]:
    """Kill a worker every 5 s and restart Redis at its times, until nearly all jobs have ended."""
    kills, restarts, next_kill = 0, 0, time.monotonic() + KILL_EVERY_S
    gives_up = time.monotonic() + DEADLINE_S

    def due() -> Any:
        nonlocal kills, restarts, next_kill
        assert time.monotonic() < gives_up, f"open: {_open(stage, names)}"
        done, letters = ended(stage)
        if restarts < len(RESTARTS_AT) and len(done | letters) >= RESTARTS_AT[restarts]:
            stage.server.kill()
            stage.server.start()
            restarts += 1
        if time.monotonic() >= next_kill:
            stage.workers[kills % WORKERS].kill_tree()
            stage.workers[kills % WORKERS].start()
            kills += 1
            next_kill = time.monotonic() + KILL_EVERY_S
        for worker in stage.workers:
            if worker.returncode is not None:  # as a supervisor would
                worker.start()
        return len(done | letters) > len(names) * 0.97 and restarts == len(RESTARTS_AT)

    wait_until(due, DEADLINE_S, "most to end")
    return kills, restarts


def _open(stage: Stage, names: set[str]) -> list[str]:
    done, letters = ended(stage)
    return sorted(names - done - letters)[:20]


def _is_recorded(stage: Stage, name: str) -> bool:
    record = stage.record(f"letters.good:good:{name}")
    return record is not None and record.state is State.DONE


def _seen(stage: Stage) -> list[str]:
    return [line["key"] for line in stage.effects.lines()]


def _starts_again(stage: Stage) -> int:
    """Second and later starts of jobs that fail or kill: they are letters, not effects."""
    seen = [name for name in _seen(stage) if not name.startswith("good-")]
    return len(seen) - len(set(seen))
