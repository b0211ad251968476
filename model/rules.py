"""What is searched (the scenario and its bound) and what may be broken on purpose (the rules)."""

from __future__ import annotations

from dataclasses import dataclass

from celery_idem.stores.memory import MemoryStore
from model.world import Ledger, Message, Worker, World


@dataclass(frozen=True, slots=True)
class Scenario:
    """The jobs of one key, the workers, and how much may go wrong."""

    name: str
    tasks: tuple[str, ...] = ("t1",)  #: task ids that producers publish under this one key
    workers: int = 2
    faults: int = 2  #: at most so many, of any kind, at any point
    max_retries: int = 1
    fails: bool = True  #: a body may raise, for a retry or for good
    requeues: bool = False  #: a body may ask to be run again later, as often as it likes
    pill: bool = False  #: every run of the body kills its child
    max_crashes: int = 2

    def start(self) -> World:
        """The tasks are published; nobody has looked yet."""
        return World(
            kept=(),
            workers=(Worker(),) * self.workers,
            ready=tuple(Message(task) for task in self.tasks),
            ledger=Ledger(),
            faults=self.faults,
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """The product's; a broken variant changes one of them."""

    name: str = "as it is"
    store: type[MemoryStore] = MemoryStore
    ack_first: bool = False  #: ack before the body, as Celery does by default
    effect_first: bool = False  #: the body, then the claim
    release_first: bool = False  #: give the key back for the retry, then publish the retry
    fast_clock: bool = False  #: a claim may judge the lease by a worker's clock that is ahead
    drops_held: bool = False  #: a delivery that meets a holder is acked and nothing else


SMALL = (
    Scenario("one job", faults=3),
    Scenario("one job, three workers", workers=3, faults=1),
    Scenario("one job that asks to come again", faults=1, requeues=True),
    Scenario("two jobs of one key", tasks=("t1", "t2"), faults=1),
    Scenario("a pill", pill=True, faults=2),
    Scenario("a pill and its duplicate", pill=True, tasks=("t1", "t2"), faults=1),
)
LARGE = (
    Scenario("one job", faults=5),
    Scenario("one job, longer", faults=3, max_retries=2, max_crashes=3),
    Scenario("one job, three workers", workers=3, faults=3),
    Scenario("one job that asks to come again", faults=3, requeues=True),
    Scenario("two jobs of one key", tasks=("t1", "t2"), faults=2),
    Scenario("a pill", pill=True, faults=4, max_crashes=3),
    Scenario("a pill and its duplicate", pill=True, tasks=("t1", "t2"), faults=2),
)
