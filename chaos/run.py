"""One run on one broker: load, faults, then calm, and the verdict."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery_idem.core.errors import IdemError
from chaos.database import packed
from chaos.faults import Director, Happening
from chaos.load import Customers, Tail
from chaos.looks import TAKES_POPPED, Watcher, vanished
from chaos.recovery import Recovery, recoveries
from chaos.schedule import Fault, Kind, plan
from chaos.stage import Leg, Stage, environment
from chaos.verdict import Accepted, Verdict, judge

logger = logging.getLogger("chaos")

APP_MODULE = "chaos.app"
TICK_S = 0.05
#: Seconds between two looks at a stock Redis broker, and between two lines of progress.
LOOK_EVERY_S, SAY_EVERY_S = 1.0, 15.0
#: After the last fault, seconds without any progress after which what is missing is missing. A
#: requeued message may wait for a minute, and then another worker must come by.
NO_PROGRESS_S = 100.0
#: The same where the broker says that it holds nothing any more.
NOTHING_LEFT_S = 20.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do; the same plan gives the same schedule of faults and of orders."""

    leg: Leg
    length_s: float
    seed: int
    workers: int = 3
    rate: float = 15.0  #: jobs a second
    gap_s: float = 4.0  #: mean seconds between two faults

    def faults(self) -> tuple[Fault, ...]:
        return plan(self.seed, self.length_s, self.leg.kinds, self.workers, self.gap_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that the report shows."""

    plan: Plan
    began: float  #: monotonic seconds, as all times here
    calm: float  #: when the last fault had ended
    ended: float
    lines: Sequence[Mapping[str, Any]]
    happenings: Sequence[Happening]
    recoveries: Sequence[Recovery]
    verdict: Verdict
    letters: Mapping[str, str]
    refused: int
    ended_alone: Sequence[str]


@dataclass(slots=True)
class _Show:
    """The run while it goes on."""

    plan: Plan
    stage: Stage
    module: Any
    tail: Tail
    customers: Customers
    director: Director
    watcher: Watcher
    began: float = field(default_factory=time.monotonic)
    _looked: float = 0.0
    _said: float = 0.0

    def play(self, faults: Sequence[Fault]) -> None:
        """Begin and end every fault in its time."""
        events = [(f.at_s, 0, self.director.begin, f) for f in faults]
        events += [(f.ends_s, 1, self.director.end, f) for f in faults]
        for at_s, _, act, fault in sorted(events, key=lambda event: event[:2]):
            self._until(at_s)
            act(fault)
            if fault.kind is Kind.DEPLOY:
                self.customers.promos.set()
        self._until(self.plan.length_s)

    def settle(self) -> None:
        """Everything is healed: wait until all is done, or nothing moves any more."""
        self.director.finish()
        self.customers.stop()
        self._drain()
        if self._replay_letters():
            self._drain()

    def letters(self) -> dict[str, str]:
        """key → reason and error of what was set aside."""
        from celery_idem.deadletters.base import Filter
        from celery_idem.deadletters.choose import letters_of

        found = {}
        for letter in letters_of(self.module.app).walk(Filter()):
            key = letter.key.partition(":")[2] or str(letter.message.headers.get("idem_key", ""))
            fault = letter.fault
            found[key or letter.id] = f"{letter.reason.value}: {fault.error_type} {fault.message}"
        return found

    def done_in_store(self, keys: frozenset[str]) -> frozenset[str]:
        """Those whose record says done: the process may have died before it told the ledger."""
        from celery_idem.binding import store_of
        from celery_idem.core.record import State

        store = store_of(self.module.app)

        def done(key: str) -> bool:
            record = store.get(f"chaos.{key.partition(':')[0]}:{key}")
            return record is not None and record.state is State.DONE

        return frozenset(key for key in keys if done(key))

    def _until(self, at_s: float) -> None:
        self._pass_time(lambda: time.monotonic() >= self.began + at_s)

    def _pass_time(self, over: Callable[[], bool]) -> None:
        while not over():
            self.director.tend()
            now = time.monotonic()
            if now - self._looked > LOOK_EVERY_S:
                self._looked = now
                self.watcher.look()
            if now - self._said > SAY_EVERY_S:
                self._said = now
                done = len(self.tail.finished)
                text = "%4.0f s: %d jobs accepted, %d keys done, %d open"
                accepted = len(self.customers.jobs)
                logger.info(text, now - self.began, accepted, done, self.customers.open())
            time.sleep(TICK_S)

    def _drain(self) -> None:
        seen, since = -1, time.monotonic()

        def over() -> bool:
            nonlocal seen, since
            self.tail.look()
            done = len(self.tail.finished)
            if done != seen:
                seen, since = done, time.monotonic()
            still = time.monotonic() - since
            if self.watcher.left() == 0 and still > NOTHING_LEFT_S:
                return True
            return self._all_accounted_for() or still > NO_PROGRESS_S

        self._pass_time(over)

    def _all_accounted_for(self) -> bool:
        open_ = self.customers.jobs.keys() - self.tail.finished
        if not open_:
            return True
        if len(open_) > 50:
            return False
        try:
            rest = open_ - self.letters().keys()
            return not rest - self.done_in_store(frozenset(rest))
        except IdemError as error:
            logger.info("the store does not answer: %s", error)
            return False

    def _replay_letters(self) -> bool:
        """Send again what was set aside; uncertain steps are for a person, and stay."""
        from celery_idem.deadletters.base import Filter
        from celery_idem.deadletters.choose import letters_of
        from celery_idem.deadletters.letter import Reason
        from celery_idem.deadletters.replay import replay

        letters = [letter for letter in letters_of(self.module.app).walk(Filter())
                   if letter.reason is not Reason.UNCERTAIN]  # fmt: skip
        if not letters:
            return False
        report = replay(self.module.app, letters)
        for key, why in self.letters().items():
            logger.info("set aside: %s: %s", key, why)
        logger.info("letters sent again: %s", {f.value: n for f, n in report.fates.items()})
        return True


def run(plan: Plan, directory: Path) -> Outcome:
    """Play the plan in a folder of its own. Call from the main thread: it owns the processes."""
    with Stage(plan.leg, directory, plan.workers) as stage, _loaded(stage.env()) as module:
        for worker in stage.workers:
            worker.start()
        for worker in stage.workers:
            worker.wait_ready(120)
        tail = Tail(stage.effects)
        customers = Customers(module, tail, plan.rate, plan.seed)
        show = _Show(plan, stage, module, tail, customers, Director(stage), Watcher(stage))
        customers.start()
        show.play(plan.faults())
        calm = time.monotonic()
        show.settle()
        return _outcome(show, calm)


def _outcome(show: _Show, calm: float) -> Outcome:
    lines = show.stage.effects.lines()
    jobs = show.customers.jobs
    letters = show.letters()
    keys = frozenset(jobs)
    missing = keys - show.tail.finished - letters.keys()
    done = show.done_in_store(missing)
    started = frozenset(str(line["key"]) for line in lines if line["what"] == "start")
    happenings = show.director.happenings
    taking = [(h.began - 2, h.ended + 5) for h in happenings if h.fault.kind in TAKES_POPPED]
    popped: frozenset[str] = frozenset()
    if show.plan.leg.loses_popped:
        popped = vanished(jobs, missing - done, show.watcher.looks, taking, started)
    sent = {job.key: job.sent for job in jobs.values()}
    failovers = [(h.began, h.ended) for h in happenings if h.fault.kind is Kind.FAILOVER]
    verdict = judge(
        lines,
        Accepted(keys, done, letters, packed(show.stage.database), popped, sent, failovers),
        happenings,
    )
    return Outcome(
        show.plan, show.began, calm, time.monotonic(), lines, happenings,
        recoveries(lines, happenings), verdict, letters, show.customers.refused,
        show.director.ended_alone,
    )  # fmt: skip


@contextlib.contextmanager
def _loaded(env: dict[str, str]) -> Iterator[Any]:
    """The app in this process, straight to the servers, as the customers' web server has it."""
    before = {name: os.environ.get(name) for name in env}
    environment(env)
    sys.modules.pop(APP_MODULE, None)
    module = importlib.import_module(APP_MODULE)
    try:
        yield module
    finally:
        module.app.close()
        sys.modules.pop(APP_MODULE, None)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
