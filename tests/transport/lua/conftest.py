"""Every test of these has a database of its own, and looks into it with a plain client."""

from __future__ import annotations

import pytest
import redis

from tests.transport.lua.acting import LEASES


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as made:
        yield made


@pytest.fixture
def alive(client):
    client.zadd(LEASES, {"me": 10**15})
