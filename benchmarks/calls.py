"""One call at a time: claim and complete against a bare ``SET NX`` on the same connection."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from benchmarks.report import Section, middle, say
from celery_idem.core.record import Claim, Claimed, ClaimRequest
from celery_idem.stores.redis.store import RedisStore
from tests.support.servers import RedisServer

#: The result of a task that returns nothing, as the task packs it.
RESULT = b"inline|application/json|utf-8\nnull"

Call = Callable[[int], Any]


def measure(rounds: int, calls: int) -> Section:
    """The table: µs a call as the caller sees it, and of it in the server."""
    say("single calls")
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        RedisServer(Path(folder), durable=False) as server,
        server.client() as client,
    ):
        subjects = _subjects(client)
        for name in subjects:
            _time(subjects[name], calls // 4)
        took: dict[str, list[float]] = {name: [] for name in subjects}
        served: dict[str, list[float]] = {name: [] for name in subjects}
        for _ in range(rounds):
            for name, call in subjects.items():
                client.config_resetstat()
                took[name].append(_time(call, calls) / calls * 1e6)
                served[name].append(_served_us(client))
    floor = took[_SET_PACKED]
    return Section(
        "One call",
        ("call", "µs", "of SET NX, packed by hand", "µs in the server"),
        [
            (
                name, f"{middle(took[name]):.0f}",
                f"{middle([a / b for a, b in zip(took[name], floor, strict=True)]):.2f}",
                f"{middle(served[name]):.1f}",
            )
            for name in subjects
        ],
        [f"Medians of {rounds} rounds of {calls} calls each, in turn, over TCP on loopback."],
    )  # fmt: skip


_SET_PACKED = "SET NX PX, packed by hand"


def _subjects(client: redis.Redis) -> dict[str, Call]:
    store = RedisStore(client)
    connection: Any = client.connection_pool.get_connection()
    claims: list[Claim] = []
    numbers = itertools.count()

    def by_client(_: int) -> Any:
        return client.set(f"nx:{next(numbers)}", "owner", nx=True, px=86_400_000)

    def by_hand(_: int) -> Any:
        key, owner = b"nx:%d" % next(numbers), b"0123456789abcdef01234567"
        connection.send_packed_command(
            [
                b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n"
                b"$8\r\n86400000\r\n" % (len(key), key, len(owner), owner)
            ],
            check_health=False,
        )
        return connection.read_response()

    def claim(_: int) -> Any:
        granted = store.claim(_request(f"bench:{next(numbers)}"))
        assert isinstance(granted, Claimed)
        claims.append(granted.claim)

    def complete(_: int) -> Any:
        assert store.complete(claims.pop(), RESULT)

    script = client.register_script((_SCRIPTS / "claim.lua").read_text())

    def claim_by_client(_: int) -> Any:
        return script(
            keys=[f"idem:{{c:{next(numbers)}}}"],
            args=["0123456789abcdef01234567", 30_000, 86_400_000, "", "task", 0, 3],
        )

    return {
        "PING, by redis-py": lambda _: client.ping(),
        "SET NX PX, by redis-py": by_client,
        _SET_PACKED: by_hand,
        "claim by redis-py's script object": claim_by_client,
        "**claim**": claim,
        "**complete**": complete,
    }


_SCRIPTS = Path(__file__).resolve().parents[1] / "celery_idem" / "stores" / "redis"


def _request(key: str) -> ClaimRequest:
    return ClaimRequest(
        key=key, owner="0123456789abcdef01234567", lease_ms=30_000, retention_ms=86_400_000,
        fingerprint="0123456789abcdef0123456789abcdef",
        task_id="5f2a4d1e-0f0c-5d0e-9a57-6a2f3f1c7b10", attempt=0, max_crashes=3,
    )  # fmt: skip


def _time(call: Call, calls: int) -> float:
    begun = time.perf_counter()
    for number in range(calls):
        call(number)
    return time.perf_counter() - begun


def _served_us(client: redis.Redis) -> float:
    """Server's µs a call of the command that was called most from outside."""
    stats = client.info("commandstats")
    for command in ("evalsha", "set", "ping"):
        found = stats.get(f"cmdstat_{command}")
        if found:
            return float(found["usec_per_call"])
    return 0.0
