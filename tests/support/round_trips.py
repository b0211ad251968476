"""Round trips to the store, by the server's own count: import the fixtures that you want."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

#: What clients send. What a script calls by itself is counted by the server, too, and left out.
SCRIPTS = ("evalsha", "eval", "script|load")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for the store alone, so that all it counts is ours."""
    with RedisServer(tmp_path_factory.mktemp("store"), durable=False) as server:
        yield server


@pytest.fixture
def counted(store: RedisServer) -> Callable[[Callable[[], Any]], int]:
    """``counted(act)``: commands that clients sent to the store meanwhile."""

    def calls() -> int:
        with store.client() as client:
            stats = client.info("commandstats")
        return sum(
            int(entry["calls"])
            for name, entry in stats.items()
            if name.removeprefix("cmdstat_") in SCRIPTS
        )

    def count(act: Callable[[], Any]) -> int:
        before = calls()
        act()
        return calls() - before

    return count


def wait_acked(broker: RedisServer, deadline_s: float) -> None:
    """Until nothing waits on the default queue, and nothing is unacked."""
    with broker.client() as client:
        wait_until(
            lambda: client.llen("celery") == 0 and client.hlen("unacked") == 0,
            deadline_s,
            "all acks",
        )
