"""A person says of an at-most-once step whether it happened: then its job can go on.

A crash inside such a step leaves it *started*: nothing runs it again, and every replay ends there.
Whoever has looked at the other side writes down what is true, under a claim of their own, so that
no worker is in the job meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_idem import results
from celery_idem.binding import binding_of
from celery_idem.core.errors import IdemError
from celery_idem.core.record import Claim, Claimed, ClaimRequest, Ending
from celery_idem.core.step import StepRecord, StepState
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Attempt, Letter
from celery_idem.deadletters.replay import whoami
from celery_idem.deadletters.tasks import task_named
from celery_idem.guard import new_owner
from celery_idem.stores.base import Store

#: Lease of the claim under which a decision is written, in milliseconds.
LEASE_MS = 10_000
#: A decision is no run: however often the key has crashed.
ANY_CRASHES = 2**31 - 1


class NotDecidable(IdemError):
    """There is no such step to decide on, or somebody works on the key now."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person knows of a step."""

    step: str
    happened: bool
    result: Any = None  #: what the step would have returned, where it happened


def undecided(app: Any, letter: Letter) -> list[str]:
    """Names of the letter's steps that were started and not seen to end."""
    record = binding_of(app).store.get(letter.key) if letter.key else None
    steps = record.steps.items() if record is not None else ()
    return [name for name, packed in steps if packed and _is_started(packed)]


def decide(app: Any, letter: Letter, decision: Decision, by: str = "") -> None:
    """Write it down. The job goes on from there when the letter is replayed.

    Raises :class:`NotDecidable` for a step that is not undecided, while somebody works on the key,
    and for a task that this app does not know; ``StoreUnavailable``.
    """
    names = undecided(app, letter)
    if decision.step not in names:
        raise NotDecidable(
            f"step {decision.step!r} of {letter.key!r} is not undecided; "
            f"undecided are: {', '.join(names) or 'none'}"
        )
    store = binding_of(app).store
    claim = _claimed(store, letter)
    try:
        # as it is now, under the claim: a worker may have been in it since
        record = store.get(letter.key)
        packed = record.steps.get(decision.step, b"") if record is not None else b""
        if not packed or not _is_started(packed):
            raise NotDecidable(f"step {decision.step!r} was decided meanwhile")
        value = _written(app, letter, decision, StepRecord.unpack(packed), claim)
        if not store.put_step(claim, decision.step, value):
            raise NotDecidable(f"{letter.key!r} was taken by somebody else meanwhile")
    finally:
        store.release(claim, Ending.RELEASE)
    told = f"step {decision.step!r} {'happened' if decision.happened else 'did not happen'}"
    letters_of(app).note(letter.id, Attempt(0, "decided", by or whoami(), told))


def _claimed(store: Store, letter: Letter) -> Claim:
    record = store.get(letter.key)
    assert record is not None  # it has an undecided step
    outcome = store.claim(
        ClaimRequest(
            key=letter.key,
            owner=new_owner(),
            lease_ms=LEASE_MS,
            retention_ms=record.retention_ms or LEASE_MS,
            fingerprint=record.fingerprint,
            max_crashes=ANY_CRASHES,
        )
    )
    if not isinstance(outcome, Claimed):
        raise NotDecidable(
            f"{letter.key!r} is {type(outcome).__name__.lower()} now, and can't be decided on; "
            "look at it: celery idem show"
        )
    return outcome.claim


def _written(app: Any, letter: Letter, decision: Decision, seen: StepRecord, claim: Claim) -> bytes:
    """The step's record from now on; empty: it was never run."""
    if not decision.happened:
        return b""
    task = task_named(app, letter.task)
    if task is None:
        raise NotDecidable(f"{letter.task!r} is unknown here: its result can't be written")
    limit = binding_of(app).settings.max_result_bytes
    reference = f"{letter.task_id}-{claim.fence}-{decision.step}"
    packed = results.encode_for_task(task, decision.result, limit, reference)
    return StepRecord(StepState.DONE, seen.function, packed).pack()


def _is_started(packed: bytes) -> bool:
    return StepRecord.unpack(packed).state == StepState.STARTED
