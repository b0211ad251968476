"""What goes wrong: two children and a whole worker are SIGKILLed, one inside each of three steps.

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
from example_project.figures import PHASES, Reader, Running

LOOK_EVERY_S = 0.004


@dataclass(frozen=True, slots=True)
class Blow:
    """A kill that is to come."""

    part: float  #: of the orders that are done by then
    what: str  #: child, worker
    phase: str  #: where its victim is, see :data:`~example_project.figures.PHASES`


#: One inside each of the three steps, at the worst instant of each.
BLOWS = (
    Blow(0.15, "child", "ordering"),
    Blow(0.40, "worker", "charged"),
    Blow(0.65, "child", "mailed"),
)


@dataclass(slots=True)
class Chaos:
    """Kills two children and one worker while the orders come in. ``leaders``: worker → pid of its
    main process, at the time of asking."""

    reader: Reader
    books: Books
    leaders: Callable[[], dict[str, int]]
    children: int
    orders: int
    seed: int
    stop: Event

    def play(self) -> None:
        """All kills, one after the other, each in its time."""
        for blow in BLOWS:
            attempt = self._try_child if blow.what == "child" else self._try_worker
            while not self.stop.is_set() and self.reader.look().done < blow.part * self.orders:
                self.stop.wait(0.05)
            while not self.stop.is_set() and not attempt(blow.phase):
                self.stop.wait(LOOK_EVERY_S)

    def _try_child(self, phase: str) -> bool:
        """One pool process, in an order that is in this phase."""
        chosen = [run for run in self.reader.running() if run.phase == phase]
        if not chosen:
            return False
        victim = random.Random(self.seed).choice(chosen)
        with frozen([victim.pid]):
            if victim not in self.reader.running():
                return False
            os.kill(victim.pid, signal.SIGKILL)
            self.books.kill("child", time.time(), _hit(victim))
        return True

    def _try_worker(self, phase: str) -> bool:
        """A worker with all its processes, one of which is in this phase.

        All of them are in an order, so it isn't asking for messages. kombu's Redis transport loses
        a message when its worker dies between taking it and noting it, whatever the task.
        """
        for worker, leader in self.leaders().items():
            runs = [run for run in self.reader.running() if run.worker == worker]
            victim = next((run for run in runs if run.phase == phase), None)
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


def _hit(run: Running) -> Hit:
    return Hit(run.worker, run.pid, run.order_id, PHASES[run.phase].moment)
