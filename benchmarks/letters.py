"""How dead letters in Redis answer when there are many.

``python -m benchmarks.letters 1000000`` starts a private server, stores so many letters and times
what an operator types. Figures depend on the machine; that they do not grow with the number of
letters does not.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery_idem.deadletters import codec
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.letter import (
    Letter,
    Message,
    Reason,
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


def fill(store: RedisLetterStore, count: int) -> None:
    """Store so many letters, with the script that workers use, many in a round trip."""
    try:
        raise ValueError("can't be done")
    except ValueError as error:
        traceback = fault_of(error).traceback * 6
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


def main(count: int) -> None:
    """Fill and ask."""
    with (
        tempfile.TemporaryDirectory() as directory,
        RedisServer(Path(directory), durable=False) as server,
    ):
        store = RedisLetterStore.from_url(server.url())
        before = int(store.client.info("memory")["used_memory"])
        begun = time.perf_counter()
        fill(store, count)
        took = time.perf_counter() - begun
        used = int(store.client.info("memory")["used_memory"]) - before
        print(f"{count} letters in {took:.0f} s; {used / count:.0f} bytes of memory each")
        now_ms = int(time.time() * 1000)
        middle = store.page(Filter(), limit=1)[0]
        timed("list, newest 50", lambda: store.page(Filter()))
        deep = next(iter(store.walk(Filter()))).position + 1_000_000
        timed("list, 50 from far back", lambda: store.page(Filter(), after=deep))
        timed("list --task", lambda: store.page(Filter(task="shop.task3")))
        timed("list --task --lane --reason", lambda: store.page(
            Filter(task="shop.task3", lane="low", reason=Reason.POISON)))  # fmt: skip
        timed("list --text (often)", lambda: store.page(Filter(text="gateway")))
        timed("list --key", lambda: store.page(Filter(key=middle.key)))
        timed("list --since 1m", lambda: store.page(Filter(since_ms=now_ms - 60_000)))
        timed("groups", lambda: store.groups(Filter()))
        timed("groups --since 1m", lambda: store.groups(Filter(since_ms=now_ms - 60_000)))
        timed("show", lambda: store.get(middle.id))
        timed("count", lambda: store.count(Filter()))
        timed("list --text (of one letter)", lambda: store.page(Filter(text="order:77 ")))
        timed("groups --task (walks)", lambda: store.groups(Filter(task="shop.task3")))
        store.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
