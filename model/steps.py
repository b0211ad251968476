"""What can happen next: every step of every process, and every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from celery_idem.core.record import (
    Claim,
    Claimed,
    ClaimRequest,
    Done,
    Ending,
    Held,
    Lease,
    Outcome,
    Poison,
    State,
    Superseded,
)
from model.promises import note_claim, note_completion, note_crash
from model.rules import Rules, Scenario
from model.world import (
    HOLDING,
    KEY,
    LEASE_MS,
    NOW_MS,
    OPEN,
    OVER,
    RETENTION_MS,
    Kept,
    Message,
    Worker,
    World,
    kept_of,
    record_of,
)

#: steps that a child takes; the others are its parent's
CHILDS = frozenset(
    ("claim", "body", "complete", "hand on", "settle", "copy", "check", "retry",
     "give back for retry", "give back", "give back on purpose", "letter")
)  # fmt: skip
#: steps that ask the store, and what comes next when it can't be reached for as long as anybody
#: has patience: the message goes back (Run._go_back), or the claim is left to its lease
#: (Run._give_back, _lost_process)
UNREACHED = {
    "claim": "copy",
    "check": "copy",
    "complete": "copy",
    "settle": "ack",
    "give back for retry": "ack",
    "give back": "letter",
    "give back on purpose": "copy",
    "report": "requeue",
}
#: the child believes that it holds the key, on its way out
UNDER_CLAIM = frozenset(
    ("check", "retry", "give back for retry", "give back", "give back on purpose")
)


class Step(NamedTuple):
    actor: int  #: index of the worker; -1: the world
    text: str
    world: World
    fault: bool = False


class Model:
    """``steps(world)`` gives everything that can happen in it."""

    def __init__(self, scenario: Scenario, rules: Rules) -> None:
        self.scenario = scenario
        self.rules = rules
        self._now_ms = NOW_MS
        self.store = rules.store(lambda: self._now_ms * 1000)
        self._does: dict[str, Callable[[World, int, Worker], Iterator[Step]]] = {
            "idle": self._take,
            "claim": self._claim,
            "body": self._body,
            "complete": self._complete,
            "hand on": self._hand_on,
            "settle": self._settle,
            "copy": self._copy,
            "check": self._check,
            "retry": self._publish_retry,
            "give back for retry": self._release_for_retry,
            "give back": self._release,
            "give back on purpose": self._release_on_purpose,
            "letter": self._letter,
            "ack": self._ack,
            "report": self._report_crash,
            "requeue": self._requeue,
        }

    def steps(self, world: World) -> Iterator[Step]:
        """All successors. Faults come last, so that a history without them is found first."""
        for index, worker in enumerate(world.workers):
            yield from self._does[worker.at](world, index, worker)
            yield from self._renew(world, index, worker)
        yield from self._time_passes(world)
        if world.faults:
            spent = world._replace(faults=world.faults - 1)
            for index, worker in enumerate(world.workers):
                yield from self._faults(spent, index, worker)

    # --- the worker's program: celery_idem/run.py, in the order of its functions -----------

    def _take(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """A delivery; the parent makes its owner token (request.py: _make_lease)."""
        used = {w.owner for w in world.workers} | {world.kept[1] if world.kept else ""}
        owner = next(str(n) for n in range(1, 99) if str(n) not in used)
        first = "body" if self.rules.effect_first else "claim"
        for message in sorted(set(world.ready)):
            ready = list(world.ready)
            ready.remove(message)
            late = world.ledger.completions > 0
            taken = Worker(first, message, owner, late=late)
            after = _put(world, index, taken)._replace(ready=tuple(ready))
            if self.rules.ack_first:
                after = _put(after, index, taken._replace(message=(*message, "acked")))
            yield Step(index, f"takes {message} as owner {owner}", after)

    def _claim(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """Run.once."""
        yield self._claimed_by(world, index, worker, 0, "asks")
        if self.rules.fast_clock:
            ahead = 2 * LEASE_MS
            yield self._claimed_by(world, index, worker, ahead, "asks, its clock ahead,")

    def _claimed_by(
        self, world: World, index: int, worker: Worker, ahead_ms: int, does: str
    ) -> Step:
        task, attempt = worker.message[:2]
        request = ClaimRequest(
            KEY,
            worker.owner,
            LEASE_MS + ahead_ms,
            RETENTION_MS,
            task_id=task,
            attempt=attempt,
            max_crashes=self.scenario.max_crashes,
        )
        self._now_ms = NOW_MS + ahead_ms
        kept, outcome = self._ask(world, lambda: self.store.claim(request))
        self._now_ms = NOW_MS
        ledger = note_claim(world, worker, outcome)
        after = world._replace(kept=kept, ledger=ledger)
        text = f"{does} and gets {_words(outcome)}"
        return Step(index, text, _put(after, index, self._let_in(worker, outcome)))

    def _let_in(self, worker: Worker, outcome: Outcome) -> Worker:
        match outcome:
            case Claimed(claim=claim):
                return worker._replace(
                    at="complete" if self.rules.effect_first else "body", fence=claim.fence
                )
            case Done(settled=settled):
                return worker._replace(at="ack" if settled else "hand on")
            case Held():
                return worker._replace(at="ack" if self.rules.drops_held else "copy")
            case Poison():
                return worker._replace(at="letter")
        return worker._replace(at="ack")  # superseded

    def _body(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """The user's code: its effect, and how it ends (Run._claimed)."""
        ledger = world.ledger
        if worker.late:
            ledger = ledger._replace(broken="the body ran for a delivery after the work was done")
        after = world._replace(ledger=ledger)
        if self.scenario.pill:
            dead = note_crash(_goto(after, index, "report"), self.scenario)
            yield Step(index, "runs the body, which kills it", dead)
            return
        ends = "claim" if self.rules.effect_first else "complete"
        yield Step(index, "runs the body", _goto(after, index, ends))
        if not self.scenario.fails or self.rules.effect_first:
            return
        if worker.message[1] < self.scenario.max_retries:
            first = "give back for retry" if self.rules.release_first else "check"
            yield Step(index, "runs the body, which wants a retry", _goto(after, index, first))
        else:
            yield Step(index, "runs the body, which fails", _goto(after, index, "give back"))
        if self.scenario.requeues:
            text = "runs the body, which asks to come again"
            yield Step(index, text, _goto(after, index, "give back on purpose"))

    def _complete(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """Run._complete, and Run._yield_to_the_holder when the lease was lost."""
        kept, accepted = self._ask(world, lambda: self.store.complete(_claim_of(worker), b"result"))
        recorded = accepted and kept != world.kept
        ledger = note_completion(world.ledger, worker) if recorded else world.ledger
        after = world._replace(kept=kept, ledger=ledger)
        text = "records the result" if accepted else "may not record: its lease was lost"
        yield Step(index, text, _goto(after, index, "hand on" if accepted else "copy"))

    def _hand_on(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """Celery publishes links, chain and chord part, and stores the result."""
        handed = tuple(sorted({*world.ledger.handed, worker.message[0]}))
        after = world._replace(ledger=world.ledger._replace(handed=handed))
        text = f"hands on what follows {worker.message[0]}"
        yield Step(index, text, _goto(after, index, "settle"))

    def _settle(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """run.settle."""
        kept, _ = self._ask(world, lambda: self.store.settle(KEY, worker.message[0]))
        yield Step(index, "notes that", _goto(world._replace(kept=kept), index, "ack"))

    def _copy(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """redeliver.come_back: a copy for later, then the ack."""
        copy = Message(*worker.message[:2])
        after = world._replace(ready=(*world.ready, copy))
        yield Step(index, f"publishes {copy} again, for later", _goto(after, index, "ack"))

    def _check(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """IdempotentTask.retry asks the store first: only the holder may publish a retry."""
        lease = Lease(KEY, worker.owner, LEASE_MS, RETENTION_MS, *worker.message[:2])
        kept, [mine] = self._ask(world, lambda: self.store.renew([lease]))
        after = _put(world._replace(kept=kept), index, worker._replace(lapsed=False))
        text = "sees that the key is its own" if mine else "may not retry: its lease was lost"
        yield Step(index, text, _goto(after, index, "retry" if mine else "copy"))

    def _publish_retry(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """Task.retry publishes, then Run._claimed gives the key back."""
        retry = Message(worker.message[0], worker.message[1] + 1)
        after = world._replace(ready=(*world.ready, retry))
        then = "ack" if self.rules.release_first else "give back for retry"
        yield Step(index, f"publishes the retry {retry}", _goto(after, index, then))

    def _release_for_retry(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        kept, mine = self._ask(
            world, lambda: self.store.release(_claim_of(worker), Ending.RETRY, LEASE_MS)
        )
        text = "gives the key back for its retry" + ("" if mine else ": not its own any more")
        then = "retry" if self.rules.release_first else "ack"
        yield Step(index, text, _goto(world._replace(kept=kept), index, then))

    def _release(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        kept, mine = self._ask(world, lambda: self.store.release(_claim_of(worker), Ending.FAILURE))
        text = "gives the key back" if mine else "may not give back: its lease was lost"
        yield Step(
            index, text, _goto(world._replace(kept=kept), index, "letter" if mine else "copy")
        )

    def _release_on_purpose(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """Run._rejected, then redeliver.requeue_later."""
        kept, _ = self._ask(world, lambda: self.store.release(_claim_of(worker), Ending.RELEASE))
        after = _goto(world._replace(kept=kept), index, "copy")
        yield Step(index, "gives the key back on purpose", after)

    def _letter(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """The dead letter is stored before the exception leaves the task."""
        letters = tuple(sorted({*world.ledger.letters, worker.message[0]}))
        after = world._replace(ledger=world.ledger._replace(letters=letters))
        text = f"stores a dead letter of {worker.message[0]}"
        yield Step(index, text, _goto(after, index, "ack"))

    # --- the parent: celery_idem/request.py -------------------------------------------------

    def _ack(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        yield Step(index, f"acks {Message(*worker.message[:2])}", _put(world, index, Worker()))

    def _report_crash(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """IdempotentRequest._lost_process."""
        kept, crashes = self._ask(world, lambda: self.store.crash(KEY, worker.owner))
        text = "'s parent sees its child dead: " + (
            "it held nothing" if crashes is None else f"crash {crashes}"
        )
        yield Step(index, text, _goto(world._replace(kept=kept), index, "requeue"))

    def _requeue(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        yield Step(index, "'s parent gives the message back", _given_back(world, index, worker))

    def _renew(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        """lease.py: the parent's keeper, where it makes a difference: the lease had run out."""
        if not worker.lapsed or worker.at not in CHILDS:
            return
        lease = Lease(KEY, worker.owner, LEASE_MS, RETENTION_MS, *worker.message[:2])
        kept, [mine] = self._ask(world, lambda: self.store.renew([lease]))
        if mine:
            after = _put(world._replace(kept=kept), index, worker._replace(lapsed=False))
            yield Step(index, "'s parent renews the lease late", after)

    # --- time and faults ----------------------------------------------------------------------

    def _time_passes(self, world: World) -> Iterator[Step]:
        """A lease runs out by itself when nobody is there to renew it."""
        if not world.kept or world.kept[3] != OPEN or _living_holder(world) is not None:
            return
        what = "the hold for the retry" if world.kept[0] == State.WAITING.value else "the lease"
        yield Step(-1, f"{what} runs out", world._replace(kept=_aged(world)))

    def _faults(self, world: World, index: int, worker: Worker) -> Iterator[Step]:
        if worker.at == "idle":
            return
        back = _given_back(world, index, worker)
        yield Step(index, "is killed, parent and child", note_crash(back, self.scenario), True)
        if worker.at in CHILDS:
            dead = note_crash(_goto(world, index, "report"), self.scenario)
            yield Step(index, "'s child is killed", dead, True)
        if len(worker.message) == 2:
            twice = world._replace(ready=(*world.ready, Message(*worker.message)))
            yield Step(-1, f"the broker delivers {Message(*worker.message)} again", twice, True)
        if worker.at == "ack":
            yield Step(index, "acks, but the ack is lost", back, True)
        if _living_holder(world) == index and world.kept[3] == OPEN:
            late = _put(world, index, worker._replace(lapsed=True))._replace(kept=_aged(world))
            late = note_crash(late, self.scenario)
            yield Step(index, "pauses for longer than its lease", late, True)
        if worker.at in UNREACHED:
            left = note_crash(_goto(world, index, UNREACHED[worker.at]), self.scenario)
            yield Step(index, f"can't reach the store to {worker.at}", left, True)
            for step in self._does[worker.at](world, index, worker):
                unheard = _put(step.world, index, worker)
                yield Step(index, f"{step.text}, but the reply is lost", unheard, True)

    # --- the store ------------------------------------------------------------------------------

    def _ask(self, world: World, call: Callable[[], Any]) -> tuple[tuple[Any, ...], Any]:
        """One operation of the product's store on this world's record."""
        record = record_of(world.kept)
        self.store._records = {} if record is None else {KEY: record}
        answer = call()
        return kept_of(self.store._records.get(KEY)), answer


def _put(world: World, index: int, worker: Worker) -> World:
    workers = list(world.workers)
    workers[index] = worker
    return world._replace(workers=tuple(workers))


def _goto(world: World, index: int, at: str) -> World:
    worker = world.workers[index]
    holds = at in HOLDING or at in UNDER_CLAIM
    return _put(
        world,
        index,
        worker._replace(
            at=at,
            fence=worker.fence if holds else 0,
            lapsed=worker.lapsed and holds,
            late=worker.late and at == "body",
        ),
    )


def _given_back(world: World, index: int, worker: Worker) -> World:
    """The worker is free, and its message may be delivered again, unless it was acked."""
    after = _put(world, index, Worker())
    if len(worker.message) > 2:
        return after
    return after._replace(ready=(*world.ready, Message(*worker.message)))


def _living_holder(world: World) -> int | None:
    if not world.kept or world.kept[0] != State.RUNNING.value:
        return None
    for index, worker in enumerate(world.workers):
        if worker.owner == world.kept[1] and worker.at in CHILDS:
            return index
    return None


def _aged(world: World) -> Kept:
    return Kept(*world.kept)._replace(lease=OVER)


def _claim_of(worker: Worker) -> Claim:
    task, attempt = worker.message[:2]
    return Claim(KEY, worker.owner, worker.fence, LEASE_MS, RETENTION_MS, task, attempt)


def _words(outcome: Outcome) -> str:
    match outcome:
        case Claimed(claim=claim, crashed=crashed):
            return f"the claim, fence {claim.fence}" + (", after a crash" if crashed else "")
        case Done(settled=settled):
            return "'done and handed on'" if settled else "'done'"
        case Held(waiting=waiting):
            return "'held for a retry'" if waiting else "'held'"
        case Poison(crashes=crashes):
            return f"'poison', {crashes} crashes"
        case Superseded(attempt=attempt):
            return f"'superseded by attempt {attempt}'"
    return repr(outcome)
