"""When what goes wrong: worked out before anything runs, from the seed and nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

#: Target of a fault that hits a server, not a worker.
SERVER = -1
#: Seconds at the start without a fault: workers come up.
CALM_START_S = 5.0
#: Seconds at the end without a new fault.
CALM_END_S = 8.0
#: Seconds that a target is left alone after a fault, so that every fault meets a living one.
PAUSE_S = 4.0
#: Mean seconds between two faults.
MEAN_GAP_S = 4.0


class Kind(str, Enum):
    """What can go wrong."""

    KILL_TREE = "kill tree"  #: SIGKILL to a worker with its children; started again
    KILL_PARENT = "kill parent"  #: SIGKILL to its main process only; started again
    KILL_CHILD = "kill child"  #: SIGKILL to one pool process
    OUT_OF_MEMORY = "out of memory"  #: SIGKILL to the largest pool process, as the kernel does
    FREEZE_TREE = "freeze tree"  #: SIGSTOP to a whole worker, SIGCONT later
    FREEZE_PARENT = "freeze parent"  #: SIGSTOP to its main process only
    CUT = "network cut"  #: a worker's connections are reset, new ones refused
    SLOW = "slow network"  #: every answer and every command of a worker is late
    DROPPED_ACKS = "dropped acks"  #: what a worker says never arrives; then the line is reset
    DROPPED_ANSWERS = "dropped answers"  #: what a worker says arrives, the answers do not
    CLOCK = "clock skew"  #: the wall clock of a worker is wrong
    DEPLOY = "deploy"  #: a new release starts beside the old one, which ends in order
    SERVER_KILL = "server killed"  #: SIGKILL to Redis, started again from its AOF
    SERVER_RESTART = "server restarted"  #: SIGTERM to Redis, started again
    SERVER_FREEZE = "server frozen"  #: SIGSTOP to Redis: connections stay, nobody answers
    DISK_FULL = "disk full: ends"  #: its AOF can't grow; with fsync always Redis ends itself
    DISK_FULL_REFUSES = "disk full: refuses"  #: the same with fsync everysec: writes are refused
    FAILOVER = "failover"  #: the master that Sentinels watch dies or hangs; the replica takes over


#: kind → (least, most) seconds that it lasts, or that what was killed stays away
LENGTHS_S: dict[Kind, tuple[float, float]] = {
    Kind.KILL_TREE: (0.2, 3.0),
    Kind.KILL_PARENT: (0.2, 2.0),
    Kind.KILL_CHILD: (0.0, 0.0),
    Kind.OUT_OF_MEMORY: (0.0, 0.0),
    Kind.FREEZE_TREE: (1.0, 9.0),
    Kind.FREEZE_PARENT: (1.0, 7.0),
    Kind.CUT: (0.5, 6.0),
    Kind.SLOW: (3.0, 8.0),
    Kind.DROPPED_ACKS: (0.5, 3.0),
    Kind.DROPPED_ANSWERS: (0.5, 3.0),
    Kind.CLOCK: (5.0, 12.0),
    Kind.DEPLOY: (4.0, 8.0),
    Kind.SERVER_KILL: (0.3, 3.0),
    Kind.SERVER_RESTART: (0.3, 2.0),
    Kind.SERVER_FREEZE: (1.0, 5.0),
    Kind.DISK_FULL: (1.0, 3.0),
    Kind.DISK_FULL_REFUSES: (1.0, 4.0),
    Kind.FAILOVER: (6.0, 9.0),
}
#: kind → (least, most) of its amount: seconds of latency, of skew; a coin for a failover. A clock
#: is wrong by less than the calm at the end: on RabbitMQ and kombu's Redis lists a retry's time is
#: by the clock of the worker that sends it, so an early clock makes its retries late by as much.
AMOUNTS: dict[Kind, tuple[float, float]] = {
    Kind.SLOW: (0.02, 0.3),
    Kind.CLOCK: (-45.0, 45.0),
    Kind.FAILOVER: (0.0, 1.0),
}
ON_SERVER = (
    Kind.SERVER_KILL, Kind.SERVER_RESTART, Kind.SERVER_FREEZE, Kind.DISK_FULL,
    Kind.DISK_FULL_REFUSES, Kind.FAILOVER,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. Seconds count from the start of the load."""

    at_s: float
    kind: Kind
    target: int  #: number of the worker, or ``SERVER``
    length_s: float
    amount: float = 0.0

    @property
    def ends_s(self) -> float:
        return self.at_s + self.length_s

    def __str__(self) -> str:
        where = "server" if self.target == SERVER else f"worker {self.target}"
        return f"{self.at_s:6.1f} s  {self.kind.value} ({where}, {self.length_s:.1f} s)"


def plan(
    seed: int, length_s: float, kinds: Sequence[Kind], workers: int, mean_gap_s: float = MEAN_GAP_S
) -> tuple[Fault, ...]:
    """The faults of a run of so many seconds. The same arguments give the same faults.

    Every kind comes once before any comes twice. A target meets one fault at a time: one that
    is still busy puts the next fault off.
    """
    dice = random.Random(f"{seed}/{length_s:g}/{workers}/{','.join(k.value for k in kinds)}")
    free_at = dict.fromkeys([SERVER, *range(workers)], CALM_START_S)
    hand: list[Kind] = []
    faults: list[Fault] = []
    now = CALM_START_S
    while True:
        if not hand:
            hand = list(kinds)
            dice.shuffle(hand)
        kind = hand.pop()
        target = SERVER if kind in ON_SERVER else dice.randrange(workers)
        length_s_ = round(dice.uniform(*LENGTHS_S[kind]), 2)
        amount = round(dice.uniform(*AMOUNTS[kind]), 3) if kind in AMOUNTS else 0.0
        now = max(now + dice.expovariate(1 / mean_gap_s), free_at[target])
        if now + length_s_ > length_s - CALM_END_S:
            return tuple(sorted(faults, key=lambda fault: fault.at_s))
        faults.append(Fault(round(now, 2), kind, target, length_s_, amount))
        free_at[target] = now + length_s_ + PAUSE_S
