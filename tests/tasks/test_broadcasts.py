"""A message that every worker gets (kombu's ``Broadcast``), and whose task is idempotent."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.effects import Effects
from tests.support.waiting import wait_until

APP = "tests.apps.everywhere"
QUEUES = ["celery", "everyone"]
SCHEMES = ["redis", "redis-streams", pytest.param("amqp", marks=pytest.mark.rabbitmq)]


@pytest.fixture(params=SCHEMES)
def app(request: Any, redis_server: Any, load_app: Any, effects: Effects) -> Any:
    if request.param == "amqp":
        url = request.getfixturevalue("rabbitmq").url
    else:
        url = redis_server.url().replace("redis", request.param, 1)
    return load_app(APP, TEST_BROKER=url, TEST_STORE=redis_server.url(1))


@pytest.fixture
def workers_of(app: Any, start_worker: Any, redis_server: Any) -> Any:
    """Factory of workers that hear broadcasts."""

    def start(count: int) -> list[Any]:
        workers = [start_worker(f"{APP}:app", queues=QUEUES) for _ in range(count)]
        if app.app.conf.broker_url.startswith("redis"):
            with redis_server.client() as client:

                def heard() -> int:
                    return sum(int(it["psub"]) for it in client.client_list())

                # remote control's, and ours
                wait_until(lambda: heard() >= 2 * count, what="subscriptions of all workers")
        return workers

    return start


def tell_all(task: Any, *args: Any) -> None:
    """Celery leaves the declaration to the workers, and kombu's Redis then knows of no fanout."""
    exchange = task.app.amqp.queues["everyone"].exchange
    task.apply_async(args, queue="everyone", declare=[exchange])


def test_each_worker_does_it_once(app: Any, workers_of: Any, effects: Effects) -> None:
    workers = workers_of(2)

    tell_all(app.reload, "config")

    effects.wait_count("config", 2)
    done_by = {line["worker"] for line in effects.lines("config")}
    assert done_by == {worker.hostname for worker in workers}


def test_what_has_a_key_is_done_by_one_worker_and_copies_do_not_multiply(
    app: Any, workers_of: Any, effects: Effects
) -> None:
    """A copy that waits would go to every worker, and each of those would send one again."""
    workers = workers_of(3)

    tell_all(app.once, "rates", 6)
    effects.wait_count("rates:end", 1)
    tell_all(app.once, "later", 0)
    effects.wait_count("later:end", 1)

    def received() -> int:
        logs = "".join(worker.log_text() for worker in workers)
        return len(re.findall(r"everywhere\.once\[\S+ received", logs))

    assert (effects.count("rates:start"), effects.count("later:start")) == (1, 1)
    # RabbitMQ gives the two others their own messages back, once a second
    assert received() < 40
