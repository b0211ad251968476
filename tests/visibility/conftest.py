"""What the tests of this room share: a kept app on a private server, and a look into its keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

APP = "tests.apps.kept:app"
#: kombu itself would give nothing back for an hour: what comes back, the keeper brought
HOUR = json.dumps({"visibility_timeout": 3600})


@pytest.fixture
def kept(redis_server, effects, load_app) -> Callable[..., ModuleType]:
    """Factory ``kept(**variables)`` of the app ``tests.apps.kept`` on the private server."""

    def load(**env: str) -> ModuleType:
        return load_app("tests.apps.kept", TEST_BROKER=redis_server.url(), **env)

    return load


@pytest.fixture
def broker_keys(redis_server) -> Callable[[], dict[str, Any]]:
    """What stands in the broker's keys of deliveries now: {key: how many}, bindings left out."""
    sizes = {b"hash": "HLEN", b"zset": "ZCARD", b"list": "LLEN", b"set": "SCARD"}

    def look() -> dict[str, Any]:
        with redis_server.client() as client:
            found = {}
            for key in client.keys("*"):
                kind = client.type(key)
                if key.startswith(b"_kombu") or key.endswith(b":pulse") or kind not in sizes:
                    continue
                found[key.decode()] = client.execute_command(sizes[kind], key)
            return found

    return look
