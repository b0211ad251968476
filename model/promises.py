"""What must hold, in every state and at every event (``docs/guarantees.md``)."""

from __future__ import annotations

from celery_idem.core.record import Claimed, Done, Outcome, Poison, Superseded
from model.rules import Scenario
from model.world import HOLDING, Kept, Ledger, Worker, World


def broken_promise(world: World, scenario: Scenario) -> str:
    """The promise that this state, or the event that led to it, breaks; empty when all hold."""
    return _two_holders(world) or world.ledger.broken or _lost(world, scenario)


def ended(world: World) -> bool:
    """Nothing is left to do."""
    return not world.ready and all(worker.at == "idle" for worker in world.workers)


def note_claim(world: World, worker: Worker, outcome: Outcome) -> Ledger:
    """The ledger after a worker got this answer."""
    ledger = world.ledger
    task, attempt = worker.message[:2]
    if isinstance(outcome, Poison) and ledger.completions:
        return ledger._replace(broken="done work was called poison")
    if isinstance(outcome, (Claimed, Poison)) and outcome.crashes > ledger.crashes:
        return ledger._replace(broken="more crashes were counted than happened")
    settled = world.kept and task in Kept(*world.kept).settled
    if settled and not isinstance(outcome, (Done, Superseded)):
        return ledger._replace(broken="a settled task was let in again")
    if not isinstance(outcome, Claimed):
        return ledger
    if ledger.completions:
        return ledger._replace(broken="a claim was granted after the work was done")
    newest = dict(ledger.newest)
    if attempt < newest.get(task, 0):
        return ledger._replace(broken="a copy older than an attempt that ran was let in")
    again = bool(world.kept) and Kept(*world.kept).owner == worker.owner
    fence = outcome.claim.fence
    if fence < ledger.highest or (fence == ledger.highest and not again):
        return ledger._replace(broken="a fence did not grow")
    newest[task] = attempt
    return ledger._replace(highest=fence, newest=tuple(sorted(newest.items())))


def note_crash(world: World, scenario: Scenario) -> World:
    """The world after a process died, paused for longer than a lease, or left a claim to it."""
    crashes = min(world.ledger.crashes + 1, scenario.max_crashes)  # no more are ever counted
    return world._replace(ledger=world.ledger._replace(crashes=crashes))


def note_completion(ledger: Ledger, worker: Worker) -> Ledger:
    """The ledger after this worker's result became the key's."""
    if ledger.completions:
        return ledger._replace(broken="the work was completed twice")
    if worker.fence < ledger.highest:
        return ledger._replace(broken="a stale fence completed the work")
    return ledger._replace(completions=1)


def _two_holders(world: World) -> str:
    sure = [w for w in world.workers if w.at in HOLDING and w.fence and not w.lapsed]
    return "two workers hold the key, and neither lease has run out" if len(sure) > 1 else ""


def _lost(world: World, scenario: Scenario) -> str:
    """A task is in some message or at work, or was handed on, or has a dead letter."""
    there = {message.task for message in world.ready}
    there |= {w.message[0] for w in world.workers if w.message}
    there |= {*world.ledger.handed, *world.ledger.letters}
    lost = [task for task in scenario.tasks if task not in there]
    return f"{lost[0]} is lost: no message, no result handed on, no dead letter" if lost else ""
