"""``python -m benchmarks.transport``: the streams transport beside stock Redis lists, in one run.

Rounds alternate between the brokers, each on a server of its own, and ratios are of medians. What
is measured: throughput, CPU of the worker's main process and of the server per task, commands per
task, the cost of publishing, latency of an idle worker, memory per message, cost of many queues and
of many delayed messages, and the time after which a killed worker's message runs again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

from tests.support.waiting import wait_until
from tests.transport.stage import Stage

#: Celery's own default
PREFETCH = int(os.environ.get("PREFETCH", "4"))
#: task → the brokers on which it is measured
RUNS = (("stock", "noop"), ("streams", "noop"), ("streams", "idempotent"))
#: commands that a client sends; those inside scripts are no round trips
SENT = ("brpop", "multi", "evalsha", "eval", "blpop", "lpush", "xack", "zadd", "hset")


@dataclass(frozen=True, slots=True)
class Rate:
    """One round."""

    per_second: float
    parent_ms: float
    server_ms: float
    publish_us: float
    calls: float


class Side(Stage):
    """One broker of a benchmark."""

    def __init__(
        self,
        broker: str,
        directory: Path,
        options: dict[str, Any] | None = None,
        *,
        idempotent: bool = False,
    ) -> None:
        conf = {"worker_prefetch_multiplier": PREFETCH}
        super().__init__(broker, directory, options=options, conf=conf, idempotent=idempotent)

    def calls(self) -> int:
        """Commands that clients have sent."""
        stats = self.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in SENT)


def rate(broker: str, task: str, count: int) -> Rate:
    """A worker empties a queue; the first and the last tenth are not counted."""
    with _side(broker, idempotent=task == "idempotent") as side:
        publish_s = side.send(task, count)
        with side.worker() as worker:
            wait_until(lambda: side.left() < count * 0.9, 60, "the start")
            parent, server = psutil.Process(worker.pid), psutil.Process(side.server.pid)
            before = (side.left(), _cpu(parent), _cpu(server), side.calls(), time.perf_counter())
            wait_until(lambda: side.left() < count * 0.1, 300, "the end")
            after = (side.left(), _cpu(parent), _cpu(server), side.calls(), time.perf_counter())
    done = before[0] - after[0]
    wall, calls = after[4] - before[4], after[3] - before[3]
    parent_s, server_s = after[1] - before[1], after[2] - before[2]
    return Rate(
        done / wall, parent_s / done * 1e3, server_s / done * 1e3, publish_s / count * 1e6,
        calls / done,
    )  # fmt: skip


def latency(broker: str, count: int) -> tuple[float, float]:
    """Sending to starting on an idle worker, p50 and p99 in ms."""
    with _side(broker) as side, side.worker():
        taken: list[float] = []
        for number in range(count + 5):
            key = f"l{number}"
            sent = time.monotonic()
            side.module.effect.delay(key)
            side.effects.wait_count(key, 1)
            taken.append(side.effects.lines(key)[0]["monotonic"] - sent)
    warm = sorted(taken[5:])
    return statistics.median(warm) * 1e3, warm[int(len(warm) * 0.99) - 1] * 1e3


def memory(broker: str, count: int, **options: Any) -> float:
    """Bytes on the server per message."""
    with _side(broker) as side:
        side.send("noop", 10)
        before = side.client.info("memory")["used_memory"]
        side.send("noop", count, **options)
        return float(side.client.info("memory")["used_memory"] - before) / count


def recovery(lease_s: float) -> float:
    """Seconds from a worker's death to the next start of its task, on an idle other worker."""
    with _side("streams", {"lease_s": lease_s}) as side, side.worker() as doomed:
        side.module.slow.delay("job", 120)
        side.effects.wait_count("job:start", 1, 60)
        with side.worker() as other:
            wait_until(lambda: len(other.children()) == 2, 60, "the other worker")
            wait_until(lambda: side.client.zcard("rs:leases") == 2, 60, "its lease")
            doomed.kill_tree()
            killed = time.monotonic()
            side.effects.wait_count("job:start", 2, lease_s + 30)
        return float(side.effects.lines("job:start")[1]["monotonic"]) - killed


def many_queues(broker: str, queues: int, count: int) -> float:
    """Tasks per second from one queue of a worker that consumes so many."""
    with _side(broker) as side:
        names = ["celery", *(f"q{number}" for number in range(queues - 1))]
        side.send("noop", count)
        with side.worker(*names):
            wait_until(lambda: side.left() < count * 0.9, 120, "the start")
            left, begun = side.left(), time.perf_counter()
            wait_until(lambda: side.left() < count * 0.1, 300, "the end")
            return (left - side.left()) / (time.perf_counter() - begun)


def delayed_beside(delayed: int, count: int) -> float:
    """Tasks per second while so many delayed messages wait in the broker."""
    with _side("streams") as side:
        side.send("noop", delayed, countdown=36_000)
        side.send("noop", count)
        with side.worker():
            wait_until(lambda: side.left() < count * 0.9, 60, "the start")
            left, begun = side.left(), time.perf_counter()
            wait_until(lambda: side.left() < count * 0.1, 300, "the end")
            return (left - side.left()) / (time.perf_counter() - begun)


def restarts(count: int) -> str:
    """Delayed tasks while the worker is restarted every 2 s; lateness after the last restart."""
    with _side("streams") as side:
        first = time.time() + count / 150  # sending them takes less
        due = {f"d{number}": first + 60 * number / count for number in range(count)}
        with side.module.app.producer_pool.acquire(block=True) as producer:
            for key, at in due.items():
                eta = datetime.fromtimestamp(at, timezone.utc)
                side.module.effect.apply_async((key,), eta=eta, producer=producer)
        worker = side.worker()
        worker.start()
        last = 0.0
        wait_until(lambda: time.time() > first - 4, count, "the first to be due")
        while time.time() < first + 16:
            wait_until(lambda: bool(worker.children()), 60, "children")
            time.sleep(2)
            worker.term()
            worker.wait_exit()
            worker.start()
            wait_until(lambda: bool(worker.children()), 60, "children")
            last = time.time() + 3  # what was due meanwhile has been caught up with
        side.effects.wait_for(lambda it: len(set(it.keys())) == count, 300)
        lines = side.effects.lines()
        worker.close()
    late = sorted(x["wall"] - due[x["key"]] for x in lines if due[x["key"]] > last)
    early = sum(x["wall"] < due[x["key"]] - 0.005 for x in lines)
    return (
        f"{count} delayed, restarts every 2 s: {len(lines)} runs, {early} early, after the last "
        f"restart {len(late)} tasks p50 {late[len(late) // 2] * 1e3:.0f} ms, "
        f"p99 {late[int(len(late) * 0.99) - 1] * 1e3:.0f} ms late"
    )


@contextmanager
def _side(
    broker: str, options: dict[str, Any] | None = None, *, idempotent: bool = False
) -> Iterator[Side]:
    with (
        tempfile.TemporaryDirectory() as directory,
        Side(broker, Path(directory), options, idempotent=idempotent) as side,
    ):
        yield side


def _cpu(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transport", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument(
        "--only", default="", help="rate, latency, memory, recovery, queues, delayed"
    )
    given = parser.parse_args()
    parts = given.only.split(",") if given.only else [
        "rate", "latency", "memory", "recovery", "queues", "delayed", "restarts",
    ]  # fmt: skip
    if "rate" in parts:
        _rates(given.rounds, given.messages)
    if "latency" in parts:
        for broker in ("stock", "streams"):
            p50, p99 = latency(broker, 200)
            print(f"idle latency {broker:8} p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    if "memory" in parts:
        for broker in ("stock", "streams"):
            print(f"memory per message {broker:8} {memory(broker, 5000):.0f} bytes")
        print(f"memory per delayed message {memory('streams', 5000, countdown=3600):.0f} bytes")
    if "recovery" in parts:
        for lease_s in (5.0, 30.0):
            print(f"recovery with a lease of {lease_s:.0f} s: {recovery(lease_s):.1f} s")
    if "queues" in parts:
        for queues in (1, 10, 100, 1000):
            rates = [many_queues(broker, queues, 1500) for broker in ("stock", "streams")]
            print(f"{queues:5} queues: stock {rates[0]:.0f}/s, streams {rates[1]:.0f}/s")
    if "delayed" in parts:
        for delayed in (0, 100_000):
            print(f"{delayed:7} delayed messages beside: {delayed_beside(delayed, 3000):.0f}/s")
    if "restarts" in parts:
        print(restarts(10_000))


def _rates(rounds: int, messages: int) -> None:
    found: dict[tuple[str, str], list[Rate]] = {run: [] for run in RUNS}
    for _ in range(rounds):
        for run in RUNS:
            found[run].append(rate(*run, messages))
    stock = found["stock", "noop"]
    for (broker, task), rows in found.items():
        ratios = [row.per_second / base.per_second for row, base in zip(rows, stock, strict=True)]
        print(
            f"{broker:8} {task:11} {_median(rows, 'per_second'):6.0f}/s "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) "
            f"parent {_median(rows, 'parent_ms'):.3f} ms "
            f"server {_median(rows, 'server_ms'):.3f} ms "
            f"publish {_median(rows, 'publish_us'):.0f} us calls {_median(rows, 'calls'):.2f}"
        )


def _median(rows: list[Rate], name: str) -> float:
    return statistics.median(getattr(row, name) for row in rows)


if __name__ == "__main__":
    main()
