"""Which Redis server the records are on, from a broker's or a backend's URL alone."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_idem.binding import binding_of
from celery_idem.stores.redis.store import RedisStore


def place_of(**conf: Any) -> dict[str, Any]:
    """redis-py's options for the store's connections."""
    app = Celery("places", set_as_current=False)
    app.conf.update(idem={}, **conf)  # not what a Django project in this process says
    store = binding_of(app).store
    assert isinstance(store, RedisStore)
    given: dict[str, Any] = store.client.connection_pool.connection_kwargs
    return given


@pytest.mark.parametrize(
    ("url", "host", "db"),
    [
        ("redis-streams://redis-streams:6379/2", "redis-streams", 2),
        ("rediss-streams://order-streams.example:6379/0", "order-streams.example", 0),
        ("redis://my-streams-cache:6379/1", "my-streams-cache", 1),
        ("redis://first:6379/1;redis://second:6379/1", "first", 1),
        ("redis-streams://first:6379;redis-streams://second:6379", "first", 0),
        (["redis://first:6379/3", "redis://second:6379/3"], "first", 3),
    ],
)
def test_the_brokers_own_server(url: Any, host: str, db: int) -> None:
    given = place_of(broker_url=url)

    assert (given["host"], given.get("db", 0)) == (host, db)


def test_a_backend_beside_a_broker_of_several_nodes() -> None:
    given = place_of(
        broker_url=["amqp://one//", "amqp://two//"], result_backend="redis://hot-streams:6379/4"
    )

    assert (given["host"], given["db"]) == ("hot-streams", 4)


def test_a_password_that_has_the_schemes_word_in_it() -> None:
    given = place_of(broker_url="redis-streams://:a-streams-b%40@localhost:6379/0")

    assert given["password"] == "a-streams-b@"


@pytest.mark.parametrize("scheme", ["sentinel", "sentinel-streams"])
def test_a_password_with_odd_letters_behind_sentinels(scheme: str) -> None:
    given = place_of(
        broker_url=f"{scheme}://me%3A:p%40ss@a:26379;{scheme}://me%3A:p%40ss@b:26379/0",
        broker_transport_options={"master_name": "main"},
    )

    assert (given["username"], given["password"]) == ("me:", "p@ss")
