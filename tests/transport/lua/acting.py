"""The scripts of the transport as calls, and looks at what they leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from celery_idem.transport import scripts

LANE, OTHER = "rs:{q}", "rs:{other}"
LEASES, DYING, DUE, WAKE = "rs:leases", "rs:dying", "rs:due", "rs:wake"
PULSE = "rs:pulse"
SESSIONS = "rs:session:"
BELL, FRONT, MAIN, LATER, DEAD = (f"{LANE}:{part}" for part in ("bell", "f", "0", "d", "dead"))
STEPS = ("f", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
HOUR_MS = 3_600_000


def now_us(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return seconds * 1_000_000 + micros


def now_ms(client: redis.Redis) -> int:
    return now_us(client) // 1000


def waits(client: redis.Redis, stream: str, **fields: str) -> str:
    """One message that waits in the stream; its id."""
    return client.xadd(stream, {"m": "body", **fields})


def holds(client: redis.Redis, session: str, stream: str, **fields: str) -> str:
    """One message that the session holds; its id."""
    entry = waits(client, stream, **fields)
    if not client.exists(stream) or not client.xinfo_groups(stream):
        client.xgroup_create(stream, "w", "0")
    taken = client.xreadgroup("w", session, {stream: ">"}, count=1)
    assert taken[0][1][0][0] == entry
    return entry


def inside(client: redis.Redis, stream: str) -> list[dict[str, str]]:
    return [fields for _, fields in client.xrange(stream)]


def held_by(client: redis.Redis, stream: str) -> dict[str, str]:
    entries = client.xpending_range(stream, "w", "-", "+", 100)
    return {it["message_id"]: it["consumer"] for it in entries}


def ms_of(entry: str) -> str:
    return entry.partition("-")[0]


def timed(client: redis.Redis, act: Callable[[], Any]) -> tuple[Any, int, int]:
    """The answer, and the server's time in µs before and after."""
    before = now_us(client)
    answer = act()
    return answer, before, now_us(client)


def requeue(client, entry, step="0", session="me", first=100, longest=60_000) -> list[int]:
    return scripts.REQUEUE(client, [LANE, DUE, WAKE], [session, step, entry, first, longest])


def ack(client, *entries, stream=MAIN, session="me") -> list[Any]:
    return scripts.ACK(client, [LEASES, stream], [session, "0", len(entries), *entries])


def give_back(client, which, pairs=(), session="me", idle=0) -> int:
    return scripts.GIVE_BACK(client, [LANE], [session, which, idle, *pairs])


def tick(client, session="me", lease_ms=5000) -> list[int]:
    """Without the silence before it."""
    return scripts.TICK(client, [LEASES, DUE, DYING, PULSE], [session, lease_ms])[:3]


def silence(client, session="me", lease_ms=5000) -> int:
    """A tick's word on how long ago the last one was, in ms."""
    return scripts.TICK(client, [LEASES, DUE, DYING, PULSE], [session, lease_ms])[3]


def put(client, ttl=0, step="0") -> str:
    return scripts.PUT(client, [LANE], [step, "body", ttl, "0", 0, "id"])


def keep(client, ttl) -> None:
    scripts.KEEP(client, [LANE], [ttl, *STEPS])


def join(client, *lanes: str, first: str = "1", lease_ms: int = 5000) -> int:
    """Session "me" registers for the lanes."""
    keys, args = [LEASES, f"{SESSIONS}me", PULSE], ["me", lease_ms, first, *lanes]
    return scripts.JOIN(client, keys, args)


def sweep(client, most=200, end="") -> list[Any]:
    return scripts.SWEEP(client, [LEASES, DYING], [SESSIONS, most, end])


def audit(client) -> int:
    return scripts.AUDIT(client, [LEASES, DYING, LANE], [SESSIONS])


def put_later(client, delay=HOUR_MS, ttl=0, lane=LANE) -> int:
    return scripts.PUT_LATER(client, [lane, DUE, WAKE], ["3", "body", delay, ttl, "7"])


def promote(client, most=100) -> list[int]:
    return scripts.PROMOTE(client, [DUE], [most])


def fetch(client, picks="1", session="me", steps="f,0,1", main="0", most=0, free="0", **more):
    keys = [LEASES, *more.get("lanes", [LANE])]
    args = [session, main, steps, picks, most, free, *more.get("promises", [])]
    return scripts.FETCH(client, keys, args)


def status(client) -> list[int]:
    return scripts.STATUS(client, [LANE], STEPS)
