"""``python -m benchmarks.transport``: the streams transport beside stock Redis and RabbitMQ.

Rounds alternate between the brokers, each Redis on a server of its own; ratios are of one round.
What is measured: throughput, CPU of the worker's main process, its children and the server per
task, commands per task, the cost of publishing, latency of an idle and of a busy worker, memory
per message, cost of many queues and of many delayed messages, and the time after which a killed
worker's message runs again. RabbitMQ is left out where none answers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

from tests.support.services import missing_rabbitmq
from tests.support.waiting import wait_until
from tests.support.workers import Worker
from tests.transport.stage import Stage

#: Celery's own default
PREFETCH = int(os.environ.get("PREFETCH", "4"))
#: task → the brokers on which it is measured
RUNS = (
    ("stock", "noop"), ("streams", "noop"), ("streams", "idempotent"), ("rabbitmq", "noop"),
)  # fmt: skip
#: seconds that each job of the flood takes, and how many of them wait
FLOOD_S, FLOOD = 0.005, 6000
#: commands that a client sends; those inside scripts are no round trips
SENT = ("brpop", "multi", "evalsha", "eval", "blpop", "lpush", "xack", "zadd", "hset")


@dataclass(frozen=True, slots=True)
class Rate:
    """One round."""

    per_second: float
    parent_ms: float
    children_ms: float
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

    def send_to(self, queue: str, count: int) -> None:
        """A flood of short jobs."""
        with self.module.app.producer_pool.acquire(block=True) as producer:
            for _ in range(count):
                self.module.nap.apply_async((FLOOD_S,), producer=producer, queue=queue)

    def calls(self) -> int:
        """Commands that clients have sent."""
        stats = self.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in SENT)


def rate(broker: str, task: str, count: int) -> Rate:
    """A worker empties a queue; the first and the last tenth are not counted."""
    with _side(broker, idempotent=task == "idempotent") as side:
        publish_s = side.send(task, count)
        with side.worker() as worker:
            wait_until(lambda: 0 < side.left() < count * 0.9, 60, "the start")
            before = _looked(side, worker)
            wait_until(lambda: side.left() < count * 0.1, 300, "the end")
            after = _looked(side, worker)
    left, wall, calls, parent, children, server = (
        now - then for now, then in zip(after, before, strict=True)
    )
    done = -left
    return Rate(
        done / wall, parent / done * 1e3, children / done * 1e3, server / done * 1e3,
        publish_s / count * 1e6, calls / done,
    )  # fmt: skip


def _looked(side: Side, worker: Worker) -> tuple[float, ...]:
    """What is left, the time, commands so far, and CPU seconds of who takes part."""
    children = sum(_cpu(psutil.Process(pid)) for pid in worker.children())
    parent = _cpu(psutil.Process(worker.pid))
    server = sum(_cpu(process) for process in _servers(side))
    return side.left(), time.perf_counter(), side.calls(), parent, children, server


def _servers(side: Side) -> list[psutil.Process]:
    if side.broker != "rabbitmq":
        return [psutil.Process(side.server.pid)]
    return [it for it in psutil.process_iter(["name"]) if it.info["name"] == "beam.smp"]


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


def latency_under_load(broker: str, count: int) -> tuple[float, float]:
    """The same for a first queue, 20 a second, while a second one is full of short jobs."""
    options = {} if broker == "rabbitmq" else {"queue_order_strategy": "priority"}
    with _side(broker, options) as side, side.worker("celery", "low"):
        side.send_to("low", FLOOD)
        taken: list[float] = []
        for number in range(count + 5):
            key = f"l{number}"
            sent = time.monotonic()
            side.module.effect.delay(key)
            side.effects.wait_count(key, 1, 120)
            taken.append(side.effects.lines(key)[0]["monotonic"] - sent)
            time.sleep(max(0.0, 0.05 - (time.monotonic() - sent)))
    warm = sorted(taken[5:])
    return statistics.median(warm) * 1e3, warm[int(len(warm) * 0.99) - 1] * 1e3


def memory(broker: str, count: int, **options: Any) -> float:
    """Bytes on the server per message."""
    with _side(broker) as side:
        side.send("noop", 10)
        before = side.client.info("memory")["used_memory"]
        side.send("noop", count, **options)
        return float(side.client.info("memory")["used_memory"] - before) / count


def recovery(broker: str, options: dict[str, Any] | None = None) -> float:
    """Seconds from a worker's death to the next start of its task, on an idle other worker."""
    with _side(broker, options) as side, side.worker() as doomed:
        side.module.slow.delay("job", 200)
        side.effects.wait_count("job:start", 1, 60)
        with side.worker() as other:
            wait_until(lambda: len(other.children()) == 2, 60, "the other worker")
            side.module.effect.delay("ready")
            side.effects.wait_count("ready", 1, 60)
            doomed.kill_tree()
            killed = time.monotonic()
            side.effects.wait_count("job:start", 2, 180)
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
            wait_until(lambda: side.left(delayed=False) < count * 0.9, 60, "the start")
            left, begun = side.left(delayed=False), time.perf_counter()
            wait_until(lambda: side.left(delayed=False) < count * 0.1, 300, "the end")
            return (left - side.left(delayed=False)) / (time.perf_counter() - begun)


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
    parser.add_argument("--only", default="", help=f"some of {', '.join(_PARTS)}")
    given = parser.parse_args()
    parts = given.only.split(",") if given.only else list(_PARTS)
    if unknown := [part for part in parts if part not in _PARTS]:
        parser.error(f"--only takes {', '.join(_PARTS)}, not {', '.join(unknown)}")
    brokers = ["stock", "streams"] + ([] if missing_rabbitmq() else ["rabbitmq"])
    for part in parts:
        _PARTS[part](brokers, given)


def _print_latency(brokers: list[str], given: argparse.Namespace) -> None:
    for name, look in (("idle", latency), ("under load", latency_under_load)):
        for broker in brokers:
            p50, p99 = look(broker, 200)
            print(f"latency {name:10} {broker:8} p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)


def _print_memory(brokers: list[str], given: argparse.Namespace) -> None:
    for broker in ("stock", "streams"):
        print(f"memory per message {broker:8} {memory(broker, 5000):.0f} bytes")
    delayed = memory("streams", 5000, countdown=3600)
    print(f"memory per delayed message {delayed:.0f} bytes", flush=True)


def _print_recovery(brokers: list[str], given: argparse.Namespace) -> None:
    for lease_s in (5.0, 30.0):
        took_s = recovery("streams", {"lease_s": lease_s})
        print(f"recovery, streams, lease {lease_s:.0f} s: {took_s:.1f} s", flush=True)
    if "rabbitmq" in brokers:
        print(f"recovery, rabbitmq: {recovery('rabbitmq'):.1f} s", flush=True)
    took_s = recovery("stock", {"visibility_timeout": 5})
    print(f"recovery, stock, visibility_timeout 5 s: {took_s:.1f} s", flush=True)


def _print_queues(brokers: list[str], given: argparse.Namespace) -> None:
    for queues in (1, 10, 100, 1000):
        rates = [f"{broker} {many_queues(broker, queues, 1500):.0f}/s" for broker in brokers]
        print(f"{queues:5} queues: {', '.join(rates)}", flush=True)


def _print_delayed(brokers: list[str], given: argparse.Namespace) -> None:
    for delayed in (0, 100_000):
        print(f"{delayed:7} delayed beside: {delayed_beside(delayed, 3000):.0f}/s", flush=True)


def _print_restarts(brokers: list[str], given: argparse.Namespace) -> None:
    print(restarts(10_000), flush=True)


def _print_rates(brokers: list[str], given: argparse.Namespace) -> None:
    runs = [run for run in RUNS if run[0] in brokers]
    _rates(runs, given.rounds, given.messages)


_PARTS: dict[str, Callable[[list[str], argparse.Namespace], None]] = {
    "rate": _print_rates,
    "latency": _print_latency,
    "memory": _print_memory,
    "recovery": _print_recovery,
    "queues": _print_queues,
    "delayed": _print_delayed,
    "restarts": _print_restarts,
}


def _rates(runs: list[tuple[str, str]], rounds: int, messages: int) -> None:
    found: dict[tuple[str, str], list[Rate]] = {run: [] for run in runs}
    for _ in range(rounds):
        for run in runs:
            found[run].append(rate(*run, messages))
    stock = found["stock", "noop"]
    for (broker, task), rows in found.items():
        ratios = [row.per_second / base.per_second for row, base in zip(rows, stock, strict=True)]
        print(
            f"{broker:8} {task:11} {_median(rows, 'per_second'):6.0f}/s "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) "
            f"parent {_median(rows, 'parent_ms'):.3f} ms "
            f"children {_median(rows, 'children_ms'):.3f} ms "
            f"server {_median(rows, 'server_ms'):.3f} ms "
            f"publish {_median(rows, 'publish_us'):.0f} us calls {_median(rows, 'calls'):.2f}",
            flush=True,
        )


def _median(rows: list[Rate], name: str) -> float:
    return float(statistics.median(getattr(row, name) for row in rows))


if __name__ == "__main__":
    main()
