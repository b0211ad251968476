"""What is not the keeper's business stays as kombu and Celery made it."""

from __future__ import annotations

import threading

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker as start_embedded
from kombu.transport import redis as kombu_redis

from celery_idem.visibility import install_visibility
from celery_idem.visibility.qos import KeptQoS
from tests.support.waiting import wait_until
from tests.visibility.conftest import APP


def test_turned_off_it_writes_nothing_and_changes_no_score(
    kept, effects, start_worker, redis_server
):
    app = kept(TEST_KEEPER="0", TEST_OPTIONS='{"visibility_timeout": 3600}')
    start_worker(APP)

    app.work.delay("job", 60)

    effects.wait_count("job:start", 1)
    with redis_server.client() as client:
        [(tag, score)] = client.zrange("unacked_index", 0, -1, withscores=True)
        assert score == pytest.approx(client.time()[0], abs=60)
        assert client.hexists("unacked", tag)
        assert client.keys("*idem*") == []


def test_a_producer_has_kombus_own_channels(redis_url):
    app = Celery(broker=redis_url, set_as_current=False)
    install_visibility(app)

    with app.connection_for_write() as connection:
        assert connection.default_channel.QoS is kombu_redis.QoS
    assert kombu_redis.Channel.QoS is kombu_redis.QoS
    app.close()


def test_installing_twice_is_installing_once(redis_url):
    app = Celery(broker=redis_url, set_as_current=False)

    install_visibility(app)
    install_visibility(app)

    assert len(app.steps["consumer"]) == 1


def add(x: int, y: int) -> int:
    return x + y


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "idem-visibility"]


def test_an_embedded_worker_leaves_no_thread_behind(redis_url):
    app = Celery(broker=redis_url, backend=redis_url, set_as_current=False)
    install_visibility(app)
    sum_of = app.task(add)

    with start_embedded(app, perform_ping_check=False, pool="solo"):
        assert sum_of.delay(2, 3).get(timeout=30) == 5
        assert len(keepers()) == 1

    wait_until(lambda: keepers() == [], what="the end of the keeper's thread")
    app.close()


def test_other_transports_are_left_alone():
    app = Celery(broker="memory://", backend="cache+memory://", set_as_current=False)
    install_visibility(app)
    sum_of = app.task(add)

    with start_embedded(app, perform_ping_check=False, pool="solo"):
        assert sum_of.delay(2, 3).get(timeout=30) == 5
        assert keepers() == []
    app.close()


def test_somebody_elses_qos_is_left_alone(redis_url):
    app = Celery(
        broker=redis_url, backend=redis_url, set_as_current=False,
        broker_transport_options={"ack_emulation": False},
    )  # fmt: skip
    install_visibility(app)
    sum_of = app.task(add)

    with start_embedded(app, perform_ping_check=False, pool="solo") as worker:
        assert sum_of.delay(2, 3).get(timeout=30) == 5
        channel = worker.consumer.connection.default_channel
        assert not isinstance(channel.qos, KeptQoS)
    app.close()
