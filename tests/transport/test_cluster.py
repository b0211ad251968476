"""C69: a Redis Cluster of three nodes. All keys in one slot, or a refusal that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_idem.core.errors import ConfigError
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.transport.conftest import APP, streams

SLOTS = 16384


@pytest.fixture
def nodes(make_redis: Callable[..., RedisServer]) -> list[RedisServer]:
    """Three nodes, each with a third of the slots."""
    made = []
    for number in range(3):
        made.append(make_redis(f"node{number}", extra=["--cluster-enabled", "yes"]))
    for number, node in enumerate(made):
        first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
        with node.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(first, last + 1))
            for other in made[:number]:
                client.execute_command("CLUSTER", "MEET", *other.address)
    for node in made:
        with node.client() as client:
            wait_until(lambda client=client: _is_whole(client), 60, "a cluster of three")
    return made


def _is_whole(client: Any) -> bool:
    info = client.execute_command("CLUSTER INFO")
    return (info["cluster_state"], info["cluster_known_nodes"]) == ("ok", "3")


def owner_of(nodes: list[RedisServer], tag: str) -> RedisServer:
    with nodes[0].client() as client:
        slot = int(client.execute_command("CLUSTER", "KEYSLOT", tag))
    return nodes[next(n for n in range(3) if slot < SLOTS * (n + 1) // 3)]


def test_all_keys_in_one_slot_work_on_the_node_that_has_it(
    nodes, load_streams_app, effects, start_worker, make_redis
):
    url = streams(owner_of(nodes, "shop").url())
    results = make_redis("results").url()
    options = {"global_keyprefix": "{shop}:"}
    app = load_streams_app(options=options, broker=url, backend=results)
    start_worker(f"{APP}:app", concurrency=2, queues=["celery", "low"])

    app.effect.delay("now")
    app.effect.apply_async(("low",), queue="low")
    app.effect.apply_async(("later",), countdown=0.5)
    app.rejecting.delay("again", 1)

    effects.wait_for(lambda it: all(it.count(k) for k in ("now", "low", "later", "again")))
    assert effects.count("now") == 1


def test_another_node_is_refused_with_the_address_of_the_right_one(nodes, load_streams_app):
    right = owner_of(nodes, "shop")
    wrong = next(node for node in nodes if node is not right)
    app = load_streams_app(options={"global_keyprefix": "{shop}:"}, broker=streams(wrong.url()))

    with app.app.connection_for_write() as connection:
        refused = pytest.raises(ConfigError, match=f"URL must name .*:{right.port}")
        with refused:
            connection.default_channel.basic_get("celery")


def test_keys_in_many_slots_are_refused_with_the_remedy(nodes, load_streams_app):
    app = load_streams_app(broker=streams(owner_of(nodes, "celery").url()))

    refused = pytest.raises(ConfigError, match="global_keyprefix to a hash tag")
    with app.app.connection_for_write() as connection, refused:
        connection.default_channel.basic_get("celery")
