"""Stores that break one rule each, to show that the machine can see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

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
    Record,
    Reused,
    Revoked,
    State,
    Superseded,
)
from celery_idem.stores.memory import MemoryStore


class AnybodyCompletes(MemoryStore):
    def complete(self, claim: Claim, result: bytes) -> bool:
        return super().complete(_as_holder(self, claim), result)


class AnybodyReleases(MemoryStore):
    def release(self, claim: Claim, ending: Ending, wait_ms: int = 0) -> bool:
        return super().release(_as_holder(self, claim), ending, wait_ms)


class AnybodyRecordsSteps(MemoryStore):
    def put_step(self, claim: Claim, name: str, value: bytes) -> bool:
        return super().put_step(_as_holder(self, claim), name, value)


class NobodyLosesALease(MemoryStore):
    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        super().renew(leases)
        return [True] * len(leases)


class AnExpiredLeaseIsLost(MemoryStore):
    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        now_ms = self._now_us() // 1000
        found = [self.get(lease.key) for lease in leases]
        over = [r is not None and r.lease_until_ms <= now_ms for r in found]
        return [self._alone(lease) and not late for lease, late in zip(leases, over, strict=True)]

    def _alone(self, lease: Lease) -> bool:
        return super().renew([lease])[0]


class OnlyTheFirstOfABatchIsRenewed(MemoryStore):
    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        return super().renew(leases[:1]) * len(leases)


class TakeOversAreNotCounted(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        before = self.get(request.key)
        outcome = super().claim(request)
        if isinstance(outcome, Claimed) and outcome.crashed and before is not None:
            self._records[request.key] = replace(self._records[request.key], crashes=before.crashes)
        return outcome


class PoisonBeforeDone(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        record = self.get(request.key)
        if record is not None and record.crashes >= request.max_crashes:
            return Poison(record.crashes)
        return super().claim(request)


class DoneBeforeSuperseded(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        outcome = super().claim(request)
        record = self.get(request.key)
        if isinstance(outcome, Superseded) and record is not None and record.state is State.DONE:
            return Done(record.result or b"", False, record.task_id == request.task_id)
        return outcome


class NothingIsSuperseded(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        outcome = super().claim(request)
        if isinstance(outcome, Superseded):
            return super().claim(replace(request, attempt=outcome.attempt))
        return outcome


class ArgumentsDoNotMatter(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        outcome = super().claim(request)
        if isinstance(outcome, Reused):
            return super().claim(replace(request, fingerprint=""))
        return outcome


class RevocationsAreForgotten(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        outcome = super().claim(request)
        if isinstance(outcome, Revoked):
            self._records[request.key] = replace(self._records[request.key], revoked=False)
            return super().claim(request)
        return outcome


class AnOwnerThatAsksAgainIsHeld(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        record = self.get(request.key)
        if record is not None and record.state is State.RUNNING and record.owner == request.owner:
            return Held(1, False, record.task_id)
        return super().claim(request)


class AWaitingKeyIsFree(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        outcome = super().claim(request)
        if isinstance(outcome, Held) and outcome.waiting:
            self.free(request.key)
            return super().claim(request)
        return outcome


class FencesStandStill(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        outcome = super().claim(request)
        if isinstance(outcome, Claimed):
            return replace(outcome, claim=replace(outcome.claim, fence=1))
        return outcome


class CompletingTwiceOverwrites(MemoryStore):
    def complete(self, claim: Claim, result: bytes) -> bool:
        accepted = super().complete(claim, result)
        if accepted:
            self._records[claim.key] = replace(self._records[claim.key], result=result)
        return accepted


class ALostRecordStaysLost(MemoryStore):
    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        return [self.get(lease.key) is not None and self._alone(lease) for lease in leases]

    def _alone(self, lease: Lease) -> bool:
        return super().renew([lease])[0]


class ARetryIsNotNoted(MemoryStore):
    def release(self, claim: Claim, ending: Ending, wait_ms: int = 0) -> bool:
        accepted = super().release(claim, ending, wait_ms)
        if record := self.get(claim.key):
            self._records[claim.key] = replace(record, published={})
        return accepted


class ACrashIsAFailure(MemoryStore):
    def crash(self, key: str, owner: str) -> int | None:
        crashes = super().crash(key, owner)
        if crashes is not None:
            record = self._records[key]
            self._records[key] = replace(
                record, crashes=record.crashes - 1, failures=record.failures + 1
            )
        return crashes


class TakeOversForgetSteps(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        outcome = super().claim(request)
        return replace(outcome, steps={}) if isinstance(outcome, Claimed) else outcome


class SettledForOneIsSettledForAll(MemoryStore):
    def claim(self, request: ClaimRequest) -> Outcome:
        outcome = super().claim(request)
        record = self.get(request.key)
        if isinstance(outcome, Done) and record is not None and record.settled:
            return replace(outcome, settled=True)
        return outcome


class FreeingKeepsCrashes(MemoryStore):
    def free(self, key: str) -> bool:
        before = self.get(key)
        freed = super().free(key)
        if freed and before is not None:
            self._records[key] = replace(self._records[key], crashes=before.crashes)
        return freed


class DoneWorkIsFreed(MemoryStore):
    def free(self, key: str) -> bool:
        record = self.get(key)
        if record is not None and record.state is State.DONE:
            self._records[key] = replace(record, state=State.RUNNING)
        return super().free(key)


class ForgettingForgetsNothing(MemoryStore):
    def forget(self, key: str) -> bool:
        return self.get(key) is not None


class RecordsNeverExpire(MemoryStore):
    def _read(self, key: str, now_us: int) -> Record | None:
        return self._records.get(key)


def _as_holder(store: MemoryStore, claim: Claim) -> Claim:
    record = store.get(claim.key)
    return claim if record is None else replace(claim, owner=record.owner)


def broken_stores() -> Iterator[Callable[..., MemoryStore]]:
    """Every class above."""
    for found in globals().values():
        if isinstance(found, type) and issubclass(found, MemoryStore) and found is not MemoryStore:
            yield found
