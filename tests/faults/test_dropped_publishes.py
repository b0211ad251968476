"""C21: a broker that is short of memory or disk reads no publishes, and what it has not read dies
with it. Whatever this package publishes is with the broker, or an error in time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_idem import confirming
from celery_idem.core.errors import NotConfirmed
from celery_idem.core.record import State
from celery_idem.deadletters import moving
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Letter, Message
from celery_idem.deadletters.publish import send
from celery_idem.deadletters.replay import Fate, How, replay
from tests.faults.conftest import APP, DEADLINE_S, record_of
from tests.support.effects import Effects
from tests.support.rabbitmq import RabbitNode
from tests.support.waiting import wait_until

LETTERS = "tests.apps.letters"


@pytest.fixture(scope="module")
def node_of_all(make_rabbit_node: Callable[..., RabbitNode]) -> RabbitNode:
    return make_rabbit_node()


@pytest.fixture
def node(node_of_all: RabbitNode) -> Iterator[RabbitNode]:
    """The module's node, running and without an alarm before and after."""
    yield node_of_all
    if node_of_all.alarmed:
        die_and_come_back(node_of_all)


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def env(node: RabbitNode, redis_server: Any, queue: str) -> dict[str, str]:
    """What the apps read; store and results are not on the broker."""
    conf = {
        "task_default_queue": queue,
        "task_publish_retry_policy": {"max_retries": 1, "interval_start": 0.1},
    }
    return {
        "TEST_BROKER": node.url,
        "TEST_BACKEND": redis_server.url(1),
        "TEST_CONF": json.dumps(conf),
    }


@pytest.fixture
def tasks(load: Any, env: dict[str, str], redis_server: Any) -> Any:
    return load({"store": redis_server.url()}, **env)


def die_and_come_back(node: RabbitNode) -> None:
    """SIGKILL; the alarms that were forced are gone as well."""
    node.kill()
    node.start()


def message_for(tasks: Any, queue: str, name: str) -> tuple[Message, dict[str, Any]]:
    """A message as a letter keeps it, and its headers."""
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    body = json.dumps([[name], {}, embed]).encode()
    headers = {"task": tasks.work.name, "id": f"id-{name}", "lang": "py"}
    message = Message(
        body=body,
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        properties={"delivery_mode": 2},
        routing_key=queue,
        queue=queue,
    )
    return message, headers


@pytest.mark.parametrize("alarm", ["set_memory_alarm", "set_disk_alarm"])
def test_each_of_fifty_messages_is_with_the_broker_or_an_error_in_time(
    node: RabbitNode,
    tasks: Any,
    queue: str,
    start_worker: Any,
    effects: Effects,
    monkeypatch: pytest.MonkeyPatch,
    alarm: str,
) -> None:
    """C21: half of them under an alarm, under which the broker is killed."""
    monkeypatch.setattr(confirming, "CONFIRM_S", 0.2)
    start_worker(APP).close()  # its queue is there from now on
    names = [f"job-{number}" for number in range(50)]
    sent, refused = [], []

    for number, name in enumerate(names):
        if number == 25:
            getattr(node, alarm)(True)
        try:
            send(tasks.app, *message_for(tasks, queue, name))
        except NotConfirmed:
            refused.append(name)
        else:
            sent.append(name)
    die_and_come_back(node)

    assert (sent, refused) == (names[:25], names[25:])
    start_worker(APP)
    effects.wait_for(lambda it: all(it.count(name) == 1 for name in sent), DEADLINE_S, "all sent")


def test_messages_that_were_not_confirmed_are_not_sent_again_and_again_while_an_alarm_lasts(
    node: RabbitNode,
    tasks: Any,
    queue: str,
    start_worker: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is the late answer to one taken for the answer to the next."""
    monkeypatch.setattr(confirming, "CONFIRM_S", 0.2)
    start_worker(APP).close()
    message = message_for(tasks, queue, "again")
    send(tasks.app, *message)
    node.set_memory_alarm(True)
    for _ in range(10):
        with pytest.raises(NotConfirmed):
            send(tasks.app, *message)

    node.set_memory_alarm(False)
    wait_until(lambda: node.depth(queue) == 2, DEADLINE_S, "the one that was written")
    send(tasks.app, *message)

    assert node.depth(queue) == 3


def test_a_message_for_a_queue_that_is_gone_is_an_error(
    node: RabbitNode, tasks: Any, queue: str
) -> None:
    with pytest.raises(Exception, match="NO_ROUTE"):
        send(tasks.app, *message_for(tasks, queue, "nowhere"))


def test_without_confirms_celery_calls_sent_what_dies_with_the_broker(
    node: RabbitNode, tasks: Any, queue: str, start_worker: Any, effects: Effects
) -> None:
    """C21 as it was reported, and why the doctor asks for ``confirm_publish`` (IDEM044)."""
    start_worker(APP).close()
    tasks.work.delay("before")
    wait_until(lambda: node.depth(queue) == 1, DEADLINE_S, "the first message")
    node.set_memory_alarm(True)

    for number in range(50):
        tasks.work.delay(f"lost-{number}")
    die_and_come_back(node)
    start_worker(APP)
    effects.wait_count("before", 1, DEADLINE_S)
    tasks.work.delay("after")
    effects.wait_count("after", 1, DEADLINE_S)

    assert [effects.count(f"lost-{number}") for number in range(50)] == [0] * 50


def test_a_retry_that_is_not_confirmed_leaves_its_message_where_it_is(
    node: RabbitNode,
    tasks: Any,
    queue: str,
    start_worker: Any,
    effects: Effects,
    gate: Any,
) -> None:
    """C21: acked for a retry that the broker never read, the job would be gone."""
    worker = start_worker(APP)
    result = tasks.tries.delay("t", str(gate()))
    effects.wait_count("start:t", 1, DEADLINE_S)

    node.set_memory_alarm(True)
    gate(1).touch()
    worker.wait_log(rf"tries\[{result.id}\] reject requeue=True", DEADLINE_S)
    die_and_come_back(node)
    for number in range(2, 9):
        gate(number).touch()

    assert result.get(timeout=DEADLINE_S) == 1
    wait_until(lambda: node.messages(queue) == 0, DEADLINE_S, "the last ack")
    assert effects.count("t") == 1
    assert record_of(tasks, "faulty.tries:tries:t").state is State.DONE


def test_a_retry_for_which_the_pool_has_no_connection_leaves_its_message_where_it_is(
    load: Any, env: dict[str, str], redis_server: Any, start_worker: Any, effects: Effects
) -> None:
    """Celery waits for one for ever; here the body has the only one, and the try is made anew. The
    second try gives a connection of its own, and is confirmed all the same."""
    conf = {**json.loads(env["TEST_CONF"]), "broker_pool_limit": 1}
    tasks = load({"store": redis_server.url()}, **{**env, "TEST_CONF": json.dumps(conf)})
    start_worker(APP)

    result = tasks.greedy.delay("g")

    assert result.get(timeout=DEADLINE_S) == 1
    assert [line["retries"] for line in effects.lines("start:g")] == [0, 0, 1]


def test_a_waiting_copy_that_is_not_confirmed_leaves_the_message_where_it_is(
    node: RabbitNode, tasks: Any, queue: str, start_worker: Any, effects: Effects, gate: Any
) -> None:
    """C21: the loser of a conflict goes back, and adopts the outcome after it."""
    start_worker(APP)
    holder = tasks.work.delay("held", str(gate()))
    effects.wait_count("start:held", 1, DEADLINE_S)
    loser_worker = start_worker(APP, env={"TEST_CONFLICT": str(gate("conflict"))})
    loser = tasks.work.delay("held", str(gate()))
    effects.wait_count("conflict", 1, DEADLINE_S)

    node.set_memory_alarm(True)
    gate("conflict").touch()
    loser_worker.wait_log("could not be sent again", DEADLINE_S)
    die_and_come_back(node)
    gate(1).touch()

    value = holder.get(timeout=DEADLINE_S)
    assert loser.get(timeout=DEADLINE_S) == value
    wait_until(lambda: node.messages(queue) == 0, DEADLINE_S, "the last ack")
    assert effects.count("start:held") == effects.count("held") == 1


@pytest.mark.parametrize("lane", ["", "other"])
def test_a_replay_that_is_not_confirmed_keeps_the_letter(
    node: RabbitNode,
    load_app: Any,
    env: dict[str, str],
    redis_server: Any,
    queue: str,
    start_worker: Any,
    effects: Effects,
    gate: Any,
    lane: str,
) -> None:
    """C21: copied, confirmed, and only then deleted; to its own queue, or to another lane."""
    idem = {"store": redis_server.url(), "lanes": {queue: 1, "other": {"queue": f"{queue}-2"}}}
    tasks = load_app(LETTERS, **env, TEST_IDEM=json.dumps(idem))
    start_worker(f"{LETTERS}:app", queues=[queue, f"{queue}-2"])
    tasks.breaks.delay("r", str(gate()))
    letter = the_letter(tasks.app)
    gate().touch()

    node.set_memory_alarm(True)
    assert replay(tasks.app, [letter], How(lane=lane)).fates == {Fate.FAILED: 1}
    assert letters_of(tasks.app).get(letter.id) is not None
    die_and_come_back(node)
    assert effects.count("r") == 0
    assert replay(tasks.app, [letter], How(lane=lane)).fates == {Fate.RUN: 1}

    effects.wait_count("r", 1, DEADLINE_S)
    assert letters_of(tasks.app).get(letter.id) is None
    wait_until(lambda: node.messages(queue) == 0, DEADLINE_S, "the last ack")
    assert effects.count("r") == 1


def test_a_letter_on_a_queue_that_is_not_confirmed_leaves_the_message_where_it_is(
    node: RabbitNode,
    load_app: Any,
    env: dict[str, str],
    redis_server: Any,
    queue: str,
    start_worker: Any,
    effects: Effects,
) -> None:
    """C21: with ``route="queue"`` a letter is a publish, too. Collecting publishes nothing, and
    acks what is stored: it works under an alarm."""
    dead = {"route": "queue", "queue": f"{queue}-dead"}
    idem = {"store": redis_server.url(), "dead_letters": dead}
    tasks = load_app(LETTERS, **env, TEST_IDEM=json.dumps(idem))
    tasks.breaks.delay("b")
    wait_until(lambda: node.depth(queue) == 1, DEADLINE_S, "the message")

    node.set_memory_alarm(True)
    worker = start_worker(f"{LETTERS}:app")
    worker.wait_log("did not take a letter", DEADLINE_S)
    assert node.messages(queue) == 1
    die_and_come_back(node)
    wait_until(lambda: node.depth(f"{queue}-dead") == 1, DEADLINE_S, "the letter")
    wait_until(lambda: node.messages(queue) == 0, DEADLINE_S, "the last ack")
    node.set_memory_alarm(True)

    assert moving.collect(tasks.app, f"{queue}-dead") == 1
    assert the_letter(tasks.app).key == "letters.breaks:breaks:b"


def the_letter(app: Any) -> Letter:
    store = letters_of(app)
    wait_until(lambda: store.count(Filter()) == 1, DEADLINE_S, "a letter")
    return next(iter(store.walk(Filter())))


def test_a_worker_goes_on_while_many_messages_that_it_puts_off_are_not_confirmed(
    node: RabbitNode, tasks: Any, queue: str, start_worker: Any, effects: Effects, gate: Any
) -> None:
    """C21: its event loop does not wait for a broker that is known to take nothing."""
    for number in range(40):
        tasks.app.send_task("faulty.not_deployed_yet", (number,), queue=queue)
    worker = start_worker(APP)
    tasks.work.delay("running", str(gate()))
    effects.wait_count("start:running", 1, DEADLINE_S)
    jobs = [f"job-{number}" for number in range(5)]
    for job in jobs:
        tasks.work.delay(job)

    node.set_memory_alarm(True)
    worker.wait_log("an unknown task could not be sent again", DEADLINE_S)
    gate(1).touch()

    effects.wait_for(lambda it: all(map(it.count, jobs)), DEADLINE_S, "the jobs behind them")
    wait_until(
        lambda: worker.log_text().count("could not be sent again") > 40, DEADLINE_S, "another try"
    )
    assert effects.count("start:running") == 1
