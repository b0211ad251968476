"""Kills workers under load and counts what never came: the same harness for either broker.

Run by hand for long runs: ``python -m tests.transport.killing --kills 1000 --broker streams``.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until
from tests.support.workers import Worker
from tests.transport.stage import Stage

logger = logging.getLogger(__name__)

#: messages that wait while workers are killed
BACKLOG = 400
#: seconds of a job: slower together than one producer, so that work is there at every kill
BUSY_S = 0.02
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


class KillRun(Stage):
    """One server, some workers that are killed and started again, and a ledger."""

    def __init__(self, broker: str, directory: Path, *, workers: int = 2, seed: int = 0) -> None:
        options = OPTIONS[broker]
        super().__init__(broker, directory, options=options, conf={"worker_prefetch_multiplier": 4})
        self.random = random.Random(seed)
        self.workers = workers
        self.sent = 0
        self.kills = 0

    def add(self, count: int) -> None:
        """Send so many more, each with a key of its own."""
        with self.module.app.producer_pool.acquire(block=True) as producer:
            for _ in range(count):
                self.module.work.apply_async((str(self.sent), BUSY_S), producer=producer)
                self.sent += 1

    # -- the two kinds of death

    def kill_under_load(self, kills: int, minutes: float = math.inf) -> None:
        """Kill main processes at random moments while they work; children end by themselves.

        Fewer than ``kills`` when the time is over.
        """
        over = time.monotonic() + minutes * 60
        workers = [self.worker().start() for _ in range(self.workers)]
        try:
            while self.kills < kills and time.monotonic() < over:
                victim = workers[self.kills % self.workers]
                wait_until(
                    lambda victim=victim: self._is_busy(victim),
                    120,
                    lambda victim=victim: f"work of {victim.hostname}:\n{self._state(victim)}",
                )
                time.sleep(self.random.uniform(0, 0.1))
                victim.kill_parent()
                self.kills += 1
                if self.kills % 50 == 0:
                    logger.info("%d kills, %d sent", self.kills, self.sent)
                victim.close()
                victim.start()
        finally:
            for worker in workers:
                worker.close()

    def _is_busy(self, worker: Worker) -> bool:
        """Whether the worker has run a task since its start, and more of them wait."""
        missing = BACKLOG - self.left()
        if missing > BACKLOG / 4:
            self.add(missing)
        children = set(worker.children())
        has_run = any(line["pid"] in children for line in self._recent_lines())
        return has_run and self.left() > BACKLOG / 8

    def _recent_lines(self) -> list[dict[str, Any]]:
        if not self.effects.path.exists():
            return []
        with self.effects.path.open("rb") as ledger:
            ledger.seek(max(0, self.effects.path.stat().st_size - 50_000))
            return [json.loads(line) for line in ledger.read().split(b"\n")[1:-1]]

    def _state(self, worker: Worker) -> str:
        found = {k: self.client.type(k) for k in self.client.keys("*")}
        streams = [k for k, kind in found.items() if kind == b"stream"]
        groups = {k: self.client.xinfo_groups(k) for k in streams}
        return f"{worker.log_text()[-3000:]}\n{sorted(found)}\n{groups}\nleft {self.left()}"

    def kill_frozen(self, kills: int, minutes: float = math.inf) -> None:
        """Freeze an idle worker, send a message, and kill it before it wakes up."""
        over = time.monotonic() + minutes * 60
        while self.kills < kills and time.monotonic() < over:
            with self.worker() as worker:
                self.add(1)
                self._wait_done(60)
                worker.stop_tree()
                self.add(1)
                worker.kill_tree()
                self.kills += 1

    def finish(self) -> Count:
        """Let one worker do what is left, and count."""
        with self.worker():
            self._wait_done(180)
        keys = self.effects.keys()
        different = set(keys)
        return Count(self.kills, self.sent, self.sent - len(different), len(keys) - len(different))

    def _wait_done(self, deadline_s: float) -> None:
        """Until nothing is left for a second: stock's messages are nowhere between two commands."""
        seen: list[float] = []

        def nothing_left() -> bool:
            if self.left():
                seen.clear()
                return False
            seen.append(time.monotonic())
            return seen[-1] - seen[0] > 1

        wait_until(nothing_left, deadline_s, lambda: f"{self.left()} messages to be done")


def run(
    broker: str,
    kills: int,
    frozen: int,
    directory: Path,
    *,
    seed: int = 0,
    minutes: float = math.inf,
) -> dict[str, Count]:
    """Both kinds of death on one broker, each for so long at most."""
    counts = {}
    if kills:
        with KillRun(broker, directory / f"{broker}-load", seed=seed) as harness:
            harness.kill_under_load(kills, minutes)
            counts["under load"] = harness.finish()
    if frozen:
        with KillRun(broker, directory / f"{broker}-frozen", seed=seed) as harness:
            harness.kill_frozen(frozen, minutes)
            counts["frozen"] = harness.finish()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--frozen", type=int, default=10)
    parser.add_argument("--broker", choices=["stock", "streams", "both"], default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="for each kind, at most")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    brokers = ["stock", "streams"] if given.broker == "both" else [given.broker]
    with tempfile.TemporaryDirectory() as directory:
        for broker in brokers:
            counts = run(
                broker,
                given.kills,
                given.frozen,
                Path(directory),
                seed=given.seed,
                minutes=given.minutes,
            )
            for kind, count in counts.items():
                sys.stdout.write(f"{broker:8} {kind:10} {count}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
