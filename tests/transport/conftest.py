"""Fixtures of the transport's tests: URLs of private servers in the scheme of the transport."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import redis
from kombu import Connection

import celery_idem.transport  # noqa: F401 - makes the schemes known
from tests.support.servers import RedisServer

APP = "tests.transport.app"
#: options with which a dead worker is noticed soon
QUICK = {"lease_s": 3}


def streams(url: str) -> str:
    """``redis://…`` as ``redis-streams://…``."""
    return url.replace("redis", "redis-streams", 1)


@pytest.fixture
def connection(redis_url: str) -> Iterator[Connection]:
    """To the transport, on a server that other tests use before and after."""
    with Connection(streams(redis_url), transport_options=QUICK) as made:
        yield made


@pytest.fixture
def client(redis_session_server: RedisServer) -> Iterator[redis.Redis]:
    """Looks at that server from the test."""
    with redis_session_server.client() as made:
        yield made


@pytest.fixture
def load_streams_app(
    load_app: Callable[..., ModuleType], redis_server: RedisServer
) -> Callable[..., ModuleType]:
    """Factory ``load_streams_app(options={…}, conf={…}, broker=url)`` of the app's module."""

    def load(
        options: dict[str, Any] | None = None,
        conf: dict[str, Any] | None = None,
        broker: str | None = None,
        backend: str | None = None,
    ) -> ModuleType:
        return load_app(
            APP,
            TEST_BROKER=broker or streams(redis_server.url()),
            TEST_BACKEND=backend or redis_server.url(1),
            TEST_OPTIONS=json.dumps({**QUICK, **(options or {})}),
            TEST_CONF=json.dumps(conf or {}),
        )

    return load
