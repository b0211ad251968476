"""How dead letters answer when there are many.

``python -m benchmarks.letters 1000000`` starts a private Redis server, ``… 100000 postgres`` (or
``mariadb``) makes a database on the server of the tests. So many letters are stored, and what an
operator types is timed. Figures depend on the machine; that they do not grow with the number of
letters does not.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from celery_idem.deadletters import codec
from celery_idem.deadletters.base import Filter, LetterStore
from celery_idem.deadletters.letter import (
    Letter,
    Message,
    Reason,
    State,
    fault_of,
    letter_id,
    named_fault,
)
from celery_idem.deadletters.redis import store as redis_store
from celery_idem.deadletters.redis.store import RedisLetterStore
from tests.support.servers import RedisServer

BATCH = 500
_ERRORS = ["shop.GatewayDown", "shop.NoSuchCustomer", "builtins.ValueError"]


def a_letter(number: int, traceback: str) -> Letter:
    """Like those of a small job: 250 bytes of body, 900 of headers, a traceback of some frames."""
    task_id = f"{number:032x}"
    message = Message(
        body=b'[["order-%d"], {"note": "%s"}, {"callbacks": null, "errbacks": null, "chain": null,'
        b' "chord": null}]' % (number, b"x" * 100),
        content_type="application/json",
        content_encoding="utf-8",
        headers={
            "lang": "py", "task": "shop.pay", "id": task_id, "shadow": None, "eta": None,
            "expires": None, "group": None, "group_index": None, "retries": 0,
            "timelimit": [None, None], "root_id": task_id, "parent_id": None,
            "argsrepr": f"('order-{number}',)", "kwargsrepr": "{'note': '…'}",
            "origin": "gen1@web-1", "ignore_result": False, "replaced_task_nesting": 0,
            "stamped_headers": None, "stamps": {}, "idem_sent_s": 1764400000.123,
        },
        properties={"correlation_id": task_id, "reply_to": task_id, "priority": 0},
        routing_key="normal",
        queue="normal",
    )  # fmt: skip
    error = _ERRORS[number % 3]
    task = f"shop.task{number % 7}"
    return Letter(
        id=letter_id(task_id, message),
        reason=Reason.POISON if number % 10 == 0 else Reason.FAILURE,
        message=message,
        task=task,
        task_id=task_id,
        key=f"{task}:order:{number}",
        lane=("critical", "normal", "low")[number % 3],
        fault=named_fault(
            error, f"can't be done: {number}", traceback, f"shop.pay:step{number % 3}"
        ),
        worker="celery@worker-1",
    )


def a_traceback() -> str:
    """Of some frames."""
    try:
        raise ValueError("can't be done")
    except ValueError as error:
        return fault_of(error).traceback * 6


def fill(store: RedisLetterStore, count: int) -> None:
    """Store so many letters, with the script that workers use, many in a round trip."""
    traceback = a_traceback()
    calls: list[tuple[bytes, list[bytes]]] = []
    for number in range(count):
        letter = a_letter(number, traceback)
        args = [
            letter.id, codec.dump_letter(letter), letter.message.body, letter.task, letter.lane,
            letter.reason.value, letter.fault.group, letter.key, letter.fault.error_type,
            letter.fault.place, redis_store._searched(letter), letter.message.queue, "1",
            letter.worker, f"{number:x}", "50",
        ]  # fmt: skip
        calls.append((store._base, [a if isinstance(a, bytes) else a.encode() for a in args]))
        if len(calls) == BATCH:
            store._scripts.call_many(redis_store._PUT, calls)
            calls.clear()
    if calls:
        store._scripts.call_many(redis_store._PUT, calls)


def timed(what: str, action: Callable[[], Any]) -> None:
    """Say how long it took, the median of five."""
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        result = action()
        took.append(time.perf_counter() - begun)
    size = len(result) if hasattr(result, "__len__") else int(bool(result))
    print(f"{sorted(took)[2] * 1000:10.1f} ms  {what}  ({size})")


@contextmanager
def redis_filled(count: int) -> Iterator[LetterStore]:
    """Letters in a private server."""
    with (
        tempfile.TemporaryDirectory() as directory,
        RedisServer(Path(directory), durable=False) as server,
    ):
        store = RedisLetterStore.from_url(server.url())
        before = int(store.client.info("memory")["used_memory"])
        fill(store, count)
        used = int(store.client.info("memory")["used_memory"]) - before
        print(f"{used / count:.0f} bytes of memory a letter")
        yield store
        store.close()


@contextmanager
def database_filled(place: str, count: int) -> Iterator[LetterStore]:
    """Letters in a database of their own."""
    from tests.django import ready  # noqa: F401, I001 - before the models
    from celery_idem.django import letters_rows as rows
    from celery_idem.django.connections import Transaction
    from celery_idem.django.letters import DjangoLetterStore
    from tests.django.databases import alias_of, made
    from tests.django.settings import MARIADB_URL, POSTGRES_URL, on_server

    url = {"postgres": POSTGRES_URL, "mariadb": MARIADB_URL}[place]
    alias = alias_of(on_server(url, "idem_bench_letters"))
    with made(alias):
        store = DjangoLetterStore(alias)
        traceback = a_traceback()
        with store._connections._taken() as connection:
            for start in range(0, count, BATCH):
                now_us = time.time_ns() // 1000
                with Transaction(connection):
                    for number in range(start, min(start + BATCH, count)):
                        letter = replace(
                            a_letter(number, traceback),
                            position=now_us + number - start,
                            first_died_ms=now_us // 1000,
                            last_died_ms=now_us // 1000,
                        )
                        rows.insert(connection, letter, "")
            size = told_size(connection)
        if size:
            print(f"{size / count:.0f} bytes a letter on the disk, with indexes")
        yield store
        store.close()


def told_size(connection: Any) -> int:
    """Bytes of the table and its indexes, where the database says it; it is told of its letters."""
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE idem_letter")
        cursor.execute("SELECT pg_total_relation_size('idem_letter')")
        return int(cursor.fetchone()[0])


def ask(store: LetterStore) -> None:
    """What an operator types."""
    now_ms = int(time.time() * 1000)
    newest = store.page(Filter(), limit=1)[0]
    deep = next(iter(store.walk(Filter()))).position + 1_000_000
    page, groups = store.page, store.groups
    timed("list, newest 50", lambda: page(Filter()))
    timed("list, 50 from far back", lambda: page(Filter(), after=deep))
    timed("list --task", lambda: page(Filter(task="shop.task3")))
    timed("list --queue", lambda: page(Filter(queue="normal")))
    timed("list --state new", lambda: page(Filter(state=State.NEW)))
    timed("list --state edited (none)", lambda: page(Filter(state=State.EDITED)))
    timed("list --task --lane --reason", lambda: page(
        Filter(task="shop.task3", lane="low", reason=Reason.POISON)))  # fmt: skip
    timed("list --text (often)", lambda: page(Filter(text="gateway")))
    timed("list --key", lambda: page(Filter(key=newest.key)))
    timed("list --since 1m", lambda: page(Filter(since_ms=now_ms - 60_000)))
    timed("groups", lambda: groups(Filter()))
    timed("groups --since 1m", lambda: groups(Filter(since_ms=now_ms - 60_000)))
    timed("groups --task", lambda: groups(Filter(task="shop.task3")))
    timed("show", lambda: store.get(newest.id))
    timed("count", lambda: store.count(Filter()))
    timed("tasks that there are", lambda: store.values("task"))
    timed("list --text (that none has)", lambda: page(Filter(text="order:77 ")))


def main(count: int, place: str) -> None:
    """Fill and ask."""
    begun = time.perf_counter()
    filled = redis_filled(count) if place == "redis" else database_filled(place, count)
    with filled as store:
        print(f"{count} letters in {place}, stored in {time.perf_counter() - begun:.0f} s")
        ask(store)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 100_000,
        sys.argv[2] if len(sys.argv) > 2 else "redis",
    )
