"""What goes wrong: a child and a whole worker are SIGKILLed, each at the worst instant for it.

The instant is chosen, not left to luck: the processes are frozen, looked at, and killed only when
they are where we want them; else they go on.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from example_project.books import Books, Hit
from example_project.family import kill_group
from example_project.figures import Reader, Running

#: Parts of the orders that are done when the child and when the worker is killed.
CHILD_AT, WORKER_AT = 0.2, 0.5
LOOK_EVERY_S = 0.004
#: After that many seconds any instant inside a payment will do.
PATIENCE_S = 15.0


@dataclass(slots=True)
class Chaos:
    """Kills one child and one worker while the orders come in. ``leaders``: worker → pid of its
    main process, at the time of asking."""

    reader: Reader
    books: Books
    leaders: Callable[[], dict[str, int]]
    children: int
    orders: int
    seed: int
    stop: Event

    def play(self) -> None:
        """Both kills, one after the other, each in its time."""
        self._when_done(CHILD_AT, self._try_child)
        self._when_done(WORKER_AT, self._try_worker)

    def _when_done(self, part: float, attempt: Callable[[bool], bool]) -> None:
        while not self.stop.is_set() and self.reader.look().done < part * self.orders:
            self.stop.wait(0.05)
        picky_until = time.monotonic() + PATIENCE_S
        while not self.stop.is_set():
            if attempt(time.monotonic() < picky_until):
                return
            self.stop.wait(LOOK_EVERY_S)

    def _try_child(self, picky: bool) -> bool:
        """One pool process, in a payment whose card is not charged yet."""
        chosen = [run for run in self.reader.running() if run.phase == "checking" or not picky]
        if not chosen:
            return False
        victim = random.Random(self.seed).choice(chosen)
        with frozen([victim.pid]):
            if victim not in self.reader.running():
                return False
            os.kill(victim.pid, signal.SIGKILL)
            self.books.kill("child", time.time(), _hit(victim))
        return True

    def _try_worker(self, picky: bool) -> bool:
        """A worker with all its processes, between the charge and the gateway's answer.

        All its children are in a payment, so it isn't asking for messages. kombu's Redis transport
        loses a message when its worker dies between taking it and noting it, whatever the task.
        """
        for worker, leader in self.leaders().items():
            runs = [run for run in self.reader.running() if run.worker == worker]
            victim = _worst(runs, picky)
            if victim is None or len(runs) < self.children:
                continue
            with frozen([run.pid for run in runs]):
                now = [run for run in self.reader.running() if run.worker == worker]
                if victim not in now or len(now) < self.children:
                    continue
                kill_group(leader)
                at = time.time()
                for run in now:
                    self.books.kill("worker", at, _hit(run))
            return True
        return False


@contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    """Stop these processes for the length of the block."""
    for pid in pids:
        _signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _worst(runs: list[Running], picky: bool) -> Running | None:
    charged = [run for run in runs if run.phase == "charged"]
    if charged or picky:
        return charged[0] if charged else None
    return runs[0] if runs else None


def _hit(run: Running) -> Hit:
    moment = {
        "checking": "card not charged yet",
        "asking": "card just being charged",
        "charged": "card charged, worker not told yet",
        "answered": "card charged",
    }[run.phase]
    return Hit(run.worker, run.pid, run.order_id, moment)
