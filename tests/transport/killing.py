"""Kills workers under load and counts what never came: the same harness for either broker.

Run by hand for long runs: ``python -m tests.transport.killing --kills 1000 --broker streams``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.effects import ENV as EFFECTS_ENV
from tests.support.effects import Effects
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.workers import Worker

APP = "tests.transport.app"
#: messages that wait while workers are killed
BACKLOG = 400
OPTIONS: dict[str, dict[str, Any]] = {
    "streams": {"lease_s": 3},
    "stock": {
        "visibility_timeout": 3,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
}


@dataclass(frozen=True, slots=True)
class Count:
    """What came of one run."""

    kills: int
    sent: int
    lost: int  #: never ran
    repeated: int  #: ran more than once, as at-least-once allows


class KillRun:
    """One server, some workers that are killed and started again, and a ledger."""

    def __init__(self, broker: str, directory: Path, *, workers: int = 2, seed: int = 0) -> None:
        self.broker = broker
        self.directory = directory
        self.random = random.Random(seed)
        self.workers = workers
        self.effects = Effects(directory / "effects.jsonl")
        self.sent = 0
        self.kills = 0
        self.server = RedisServer(directory / "redis", durable=False)

    def __enter__(self) -> KillRun:
        self.server.start()
        url = self.server.url()
        os.environ[EFFECTS_ENV] = str(self.effects.path)
        os.environ["TEST_BROKER"] = (
            url.replace("redis", "redis-streams", 1) if self.broker == "streams" else url
        )
        os.environ["TEST_OPTIONS"] = json.dumps(OPTIONS[self.broker])
        os.environ["TEST_CONF"] = json.dumps(
            {"task_ignore_result": True, "worker_prefetch_multiplier": 4}
        )
        sys.modules.pop(APP, None)
        self.module: ModuleType = importlib.import_module(APP)
        self.client = self.server.client()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.module.app.close()
        sys.modules.pop(APP, None)
        self.client.close()
        self.server.stop()

    # -- what waits

    def left(self) -> int:
        """Messages that the broker still knows of."""
        if self.broker == "stock":
            return self.client.llen("celery") + self.client.hlen("unacked")
        streams = [k for k in self.client.keys("rs:*") if self.client.type(k) == b"stream"]
        return sum(self.client.xlen(k) for k in streams) + self.client.zcard("rs:{celery}:d")

    def send(self, count: int) -> None:
        with self.module.app.producer_pool.acquire(block=True) as producer:
            for _ in range(count):
                self.module.effect.apply_async((str(self.sent),), producer=producer)
                self.sent += 1

    def new_worker(self) -> Worker:
        return Worker(f"{APP}:app", self.directory / "workers", concurrency=2, loglevel="WARNING")

    # -- the two kinds of death

    def kill_under_load(self, kills: int) -> None:
        """Kill main processes at random moments while they work; children end by themselves."""
        workers = [self.new_worker().start() for _ in range(self.workers)]
        try:
            while self.kills < kills:
                missing = BACKLOG - self.left()
                if missing > 0:
                    self.send(missing)
                victim = workers[self.kills % self.workers]
                before = self.effects.path.stat().st_size if self.effects.path.exists() else 0
                wait_until(
                    lambda before=before, victim=victim: (
                        self.effects.path.exists()
                        and self.effects.path.stat().st_size > before
                        and bool(victim.children())
                    ),
                    60,
                    "work of the worker to be killed",
                )
                wait_until(lambda victim=victim: _has_worked(victim), 60, "a busy worker")
                time.sleep(self.random.uniform(0, 0.1))
                victim.kill_parent()
                self.kills += 1
                victim.close()
                victim.start()
        finally:
            for worker in workers:
                worker.close()

    def kill_frozen(self, kills: int) -> None:
        """Freeze an idle worker, send a message, and kill it before it wakes up."""
        while self.kills < kills:
            with self.new_worker() as worker:
                self.send(1)
                self._wait_done(60)
                worker.stop_tree()
                self.send(1)
                worker.kill_tree()
                self.kills += 1

    def finish(self) -> Count:
        """Let one worker do what is left, and count."""
        with self.new_worker():
            wait_until(lambda: self.left() == 0, 180, lambda: f"{self.left()} messages to be done")
        keys = self.effects.keys()
        different = set(keys)
        return Count(self.kills, self.sent, self.sent - len(different), len(keys) - len(different))

    def _wait_done(self, deadline_s: float) -> None:
        wait_until(lambda: self.left() == 0, deadline_s, "an idle worker")


def _has_worked(worker: Worker) -> bool:
    """Whether its main process has used its processor since its children were forked."""
    import psutil

    try:
        children = worker.children()
        spent = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in children]
    except psutil.NoSuchProcess:
        return False
    return len(children) == 2 and any(spent)


def run(broker: str, kills: int, frozen: int, directory: Path, seed: int = 0) -> dict[str, Count]:
    """Both kinds of death on one broker."""
    counts = {}
    with KillRun(broker, directory / f"{broker}-load", seed=seed) as harness:
        if kills:
            harness.kill_under_load(kills)
            counts["under load"] = harness.finish()
    with KillRun(broker, directory / f"{broker}-frozen", seed=seed) as harness:
        if frozen:
            harness.kill_frozen(frozen)
            counts["frozen"] = harness.finish()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--frozen", type=int, default=10)
    parser.add_argument("--broker", choices=["stock", "streams", "both"], default="both")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    brokers = ["stock", "streams"] if given.broker == "both" else [given.broker]
    with tempfile.TemporaryDirectory() as directory:
        for broker in brokers:
            counts = run(broker, given.kills, given.frozen, Path(directory), given.seed)
            for kind, count in counts.items():
                sys.stdout.write(f"{broker:8} {kind:10} {count}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
