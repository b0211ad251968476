"""C06: RabbitMQ closes the channel of a consumer that holds a message too long."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from celery_idem.core.record import State
from tests.faults.conftest import APP, DEADLINE_S, record_of
from tests.support.effects import Effects
from tests.support.rabbitmq import RabbitNode
from tests.support.waiting import wait_until

TIMEOUT_S = 3
JOBS = [f"job-{number}" for number in range(4)]
CLOSED = r"RabbitMQ has closed the channel"
CLOSED_AGAIN = rf"(?s)({CLOSED}.*){{2}}"


@pytest.fixture(scope="module")
def impatient(make_rabbit_node: Callable[..., RabbitNode]) -> RabbitNode:
    """A node that waits 3 s for an ack, where others wait 30 min, and looks twice a second."""
    return make_rabbit_node(consumer_timeout=str(TIMEOUT_S * 1000), channel_tick_interval="500")


@pytest.fixture
def queue() -> str:
    return f"slow-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def tasks(impatient: RabbitNode, load: Any, redis_server: Any, queue: str) -> Any:
    return load(
        {"store": redis_server.url()},
        TEST_BROKER=impatient.url,
        TEST_BACKEND=redis_server.url(1),
        TEST_CONF=json.dumps({"task_default_queue": queue}),
    )


def wait_all_acked(node: RabbitNode, queue: str) -> None:
    wait_until(lambda: node.messages(queue) == 0, DEADLINE_S, "the last ack")


@pytest.mark.parametrize(
    ("pool", "concurrency"),
    [("prefork", 1), ("prefork", 2), ("threads", 2), ("gevent", 2)],
)
def test_a_run_longer_than_the_consumer_timeout_is_one_run_and_its_worker_goes_on(
    impatient: RabbitNode,
    tasks: Any,
    queue: str,
    start_worker: Any,
    effects: Effects,
    gate: Any,
    pool: str,
    concurrency: int,
) -> None:
    """C06: on stock Celery the worker takes nothing more and exits, and the next runs it again.

    With one process, the message that comes back can't step aside: it waits behind its own run,
    and the channel is closed again, until the run ends.
    """
    worker = start_worker(APP, pool=pool, concurrency=concurrency)
    slow = tasks.work.delay("slow", str(gate()))
    effects.wait_count("start:slow", 1, DEADLINE_S)

    worker.wait_log(CLOSED if concurrency > 1 else CLOSED_AGAIN, DEADLINE_S)
    waiting = [tasks.work.delay(job) for job in JOBS]
    if concurrency > 1:
        worker.wait_log(rf"{slow.id}\] ignored", DEADLINE_S)
        [job.get(timeout=DEADLINE_S) for job in waiting]
    gate(1).touch()

    assert slow.get(timeout=DEADLINE_S).startswith("slow by ")
    [job.get(timeout=DEADLINE_S) for job in waiting]
    wait_all_acked(impatient, queue)
    assert effects.count("start:slow") == effects.count("slow") == 1
    assert [effects.count(job) for job in JOBS] == [1] * len(JOBS)
    record = record_of(tasks, "faulty.work:work:slow")
    assert (record.state, record.crashes) == (State.DONE, 0)
    assert worker.returncode is None


def test_another_worker_that_gets_the_message_of_a_long_run_waits_for_its_outcome(
    impatient: RabbitNode,
    tasks: Any,
    queue: str,
    two_workers: Any,
    effects: Effects,
    gate: Any,
) -> None:
    """C06, with somebody idle beside it."""
    workers = two_workers()
    slow = tasks.work.delay("slow", str(gate()))
    effects.wait_count("start:slow", 1, DEADLINE_S)

    wait_until(
        lambda: any(f"{slow.id}] ignored" in worker.log_text() for worker in workers),
        DEADLINE_S,
        "a second delivery that steps aside",
    )
    gate(1).touch()

    assert slow.get(timeout=DEADLINE_S).startswith("slow by ")
    wait_all_acked(impatient, queue)
    assert effects.count("start:slow") == effects.count("slow") == 1
    assert [worker.returncode for worker in workers] == [None, None]


def test_a_countdown_longer_than_the_consumer_timeout_runs_once(
    impatient: RabbitNode, tasks: Any, queue: str, start_worker: Any, effects: Effects
) -> None:
    """C06: a message with a countdown is held unacked by the worker until it is due."""
    worker = start_worker(APP)

    later = tasks.work.apply_async(("later",), countdown=2 * TIMEOUT_S)

    assert later.get(timeout=DEADLINE_S).startswith("later by ")
    assert worker.wait_log(CLOSED)
    wait_all_acked(impatient, queue)
    assert effects.count("start:later") == effects.count("later") == 1
    assert worker.returncode is None


def test_a_queue_that_is_declared_otherwise_still_ends_the_worker(
    impatient: RabbitNode, tasks: Any, queue: str, start_worker: Any
) -> None:
    """The same code of AMQP's, for a mistake that no reconnect mends: Celery's answer is kept."""
    with impatient.connection() as link:
        link.SimpleQueue(queue, queue_opts={"max_length": 7}).close()

    worker = start_worker(APP, wait=False)

    assert worker.wait_exit(DEADLINE_S) != 0
    assert "inequivalent arg" in worker.log_text()


def test_without_idempotent_tasks_the_worker_exits_as_before(
    impatient: RabbitNode, load_app: Any, start_worker: Any, effects: Effects, redis_server: Any
) -> None:
    """C06 as it was reported."""
    plain = load_app(
        "tests.apps.plain", TEST_BROKER=impatient.url, TEST_BACKEND=redis_server.url(1)
    )
    worker = start_worker("tests.apps.plain:app")
    plain.slow.delay("p", 3 * TIMEOUT_S)

    worker.wait_log("Unrecoverable error: PreconditionFailed", DEADLINE_S)
    worker.wait_exit(DEADLINE_S)

    assert effects.keys() == ["p:start", "p:end"]
    wait_until(lambda: impatient.depth("celery") == 1, DEADLINE_S, "the same job, to be run again")
