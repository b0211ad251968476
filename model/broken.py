"""Variants that break one rule each. The search must refute every one of them.

Some are stores that the product's protocol is wrapped in, some are programs of the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from celery_idem.core.record import (
    Claim,
    Claimed,
    ClaimRequest,
    Done,
    Ending,
    Lease,
    Outcome,
    Poison,
    State,
    Superseded,
)
from celery_idem.stores.memory import MemoryStore
from model.rules import Rules, Scenario


class PlainSetNx(MemoryStore):
    """``SET key NX EX 86400``: taken means duplicate, a failure deletes the key."""

    def claim(self, request: ClaimRequest) -> Outcome:
        if self.get(request.key) is not None:
            return Done(b"", settled=True)
        return super().claim(request)

    def release(self, claim: Claim, ending: Ending, wait_ms: int = 0) -> bool:
        self.forget(claim.key)
        return True

    def crash(self, key: str, owner: str) -> int | None:
        return None


class AnybodyReleases(MemoryStore):
    def release(self, claim: Claim, ending: Ending, wait_ms: int = 0) -> bool:
        return super().release(_as_holder(self, claim), ending, wait_ms)


class AnybodyCompletes(MemoryStore):
    def complete(self, claim: Claim, result: bytes) -> bool:
        return super().complete(_as_holder(self, claim), result)


class LosersRenew(MemoryStore):
    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        super().renew(leases)
        return [True] * len(leases)


class DoneIsSettled(MemoryStore):
    """A duplicate of done work is acked, whether or not what follows was handed on."""

    def claim(self, request: ClaimRequest) -> Outcome:
        outcome = super().claim(request)
        return replace(outcome, settled=True) if isinstance(outcome, Done) else outcome


class PoisonBeforeDone(MemoryStore):
    """Deliveries of done work are counted, and the count is looked at before the state."""

    def claim(self, request: ClaimRequest) -> Outcome:
        record = self.get(request.key)
        if record is not None and record.state is State.DONE:
            record = replace(record, crashes=record.crashes + 1)
            self._records[request.key] = record
            if record.crashes >= request.max_crashes:
                return Poison(record.crashes)
        return super().claim(request)


class NothingIsSuperseded(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        outcome = super().claim(request)
        if not isinstance(outcome, Superseded):
            return outcome
        return super().claim(replace(request, attempt=outcome.attempt))


class NewerAttemptsTakeOver(MemoryStore):
    """As the product once did: also from a holder that did not publish them."""

    def claim(self, request: ClaimRequest) -> Outcome:
        record = self.get(request.key)
        if record is None or record.state is not State.RUNNING:
            return super().claim(request)
        self._records[request.key] = replace(record, crashes=0)
        outcome = super().claim(request)
        now = self._records[request.key]
        self._records[request.key] = replace(now, crashes=now.crashes + record.crashes)
        return outcome


class CrashesAreForgotten(MemoryStore):
    def crash(self, key: str, owner: str) -> int | None:
        crashes = super().crash(key, owner)
        if crashes:
            self._records[key] = replace(self._records[key], crashes=0)
        return crashes


class FencesStandStill(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        outcome = super().claim(request)
        if not isinstance(outcome, Claimed):
            return outcome
        self._records[request.key] = replace(self._records[request.key], fence=1)
        return replace(outcome, claim=replace(outcome.claim, fence=1))


_ONE_JOB = Scenario("one job", faults=2)
_TWO_JOBS = Scenario("two jobs of one key", tasks=("t1", "t2"), faults=1)
_PILL = Scenario("a pill", pill=True, faults=0)


@dataclass(frozen=True, slots=True)
class Broken:
    """A variant, where it shows, and the promise that it breaks."""

    rules: Rules
    breaks: str
    scenario: Scenario = _ONE_JOB


_LOST = "is lost"
_TWO_HOLDERS = "two workers hold the key"

VARIANTS = (
    Broken(Rules("the plain SET NX EX wrapper", PlainSetNx), _LOST),
    Broken(Rules("release by a non-owner", AnybodyReleases), _TWO_HOLDERS),
    Broken(Rules("completion without fence or owner", AnybodyCompletes), "a stale fence completed"),
    Broken(Rules("the effect before the claim", effect_first=True), "the body ran for a delivery"),
    Broken(Rules("the lease judged by a worker's clock", fast_clock=True), _TWO_HOLDERS),
    Broken(Rules("done without settled", DoneIsSettled), _LOST),
    Broken(Rules("poison looked at before done", PoisonBeforeDone), "done work was called poison"),
    Broken(Rules("the ack before the body", ack_first=True), _LOST),
    Broken(Rules("a delivery that meets a holder is dropped", drops_held=True), _LOST, _TWO_JOBS),
    Broken(Rules("the key given back before the retry is published", release_first=True), _LOST),
    Broken(Rules("older copies run", NothingIsSuperseded), "a copy older than an attempt that ran"),
    Broken(Rules("every newer attempt takes over", NewerAttemptsTakeOver), _TWO_HOLDERS),
    Broken(Rules("a loser renews", LosersRenew), _TWO_HOLDERS),
    Broken(Rules("fences that stand still", FencesStandStill), "a fence did not grow"),
    Broken(Rules("crashes are forgotten", CrashesAreForgotten), "the job never ends", _PILL),
)


def _as_holder(store: MemoryStore, claim: Claim) -> Claim:
    record = store.get(claim.key)
    return claim if record is None else replace(claim, owner=record.owner)
