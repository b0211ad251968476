"""A store and the model side by side through random histories, until they differ.

The model is the memory store, which runs ``core/protocol.py`` itself, with a clock turned by hand.
A real store's clock can't be turned, so every lease, hold and retention is either ``OVER``, gone
before the next operation, or ``LASTS``, longer than any history. Exact times are not compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, multiple, rule

from celery_idem.core.record import Claim, Claimed, ClaimRequest, Ending, Held, Lease, Record
from celery_idem.stores.base import Store
from celery_idem.stores.memory import MemoryStore
from tests.conformance.registry import HandClock, Subject

OVER = 1
LASTS = 3_600_000

KEYS = st.sampled_from(["a", "b"])
TASKS = st.sampled_from(["t1", "t1", "t2", ""])
ATTEMPTS = st.integers(0, 3)
FINGERPRINTS = st.sampled_from(["f1", "f1", "f2", ""])
LEASES = st.sampled_from([LASTS, OVER])
RETENTIONS = st.sampled_from([LASTS, LASTS, LASTS, OVER])
RESULTS = st.sampled_from([b"one", b"two", b"", bytes(range(256))])
STEPS = st.sampled_from(["email", "stock", "st", "{x} y"])

_histories = itertools.count()


@dataclass(frozen=True)
class Granted:
    """One claim, as each of the two gave it."""

    request: ClaimRequest
    real: Claim
    model: Claim


class SideBySide(RuleBasedStateMachine):
    """``SideBySide(subject)`` compares the subject's store with the model."""

    claims = Bundle("claims")

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.real: Store = subject.store
        self.real_clock = subject.clock
        self.model_clock = HandClock()
        self.model = MemoryStore(self.model_clock.now_us)
        self.history = next(_histories)
        self.owners = itertools.count()
        self.fences: dict[str, list[tuple[int, int]]] = {}

    # --- what a worker does

    @rule(
        target=claims,
        key=KEYS,
        task_id=TASKS,
        attempt=ATTEMPTS,
        fingerprint=FINGERPRINTS,
        lease_ms=LEASES,
        retention_ms=RETENTIONS,
        max_crashes=st.integers(1, 3),
    )
    def claim(self, key: str, **given: Any) -> Any:
        request = ClaimRequest(self._key(key), f"w{next(self.owners)}", **given)
        return self._claim(request, again=False)

    @rule(target=claims, claim=claims)
    def claim_again_by_the_same_owner(self, claim: Granted) -> Any:
        return self._claim(claim.request, again=True)

    @rule(batch=st.lists(claims, min_size=1, max_size=3), lease_ms=LEASES, retention_ms=RETENTIONS)
    def renew(self, batch: list[Granted], lease_ms: int, retention_ms: int) -> None:
        if lease_ms == retention_ms == OVER:
            batch = batch[:1]  # the first's record would be over before the last is looked at

        def leases(side: Callable[[Granted], Claim]) -> list[Lease]:
            each = [side(claim) for claim in batch]
            return [
                Lease(c.key, c.owner, lease_ms, retention_ms, c.task_id, c.attempt) for c in each
            ]

        self._same(
            self.real.renew(leases(lambda c: c.real)), self.model.renew(leases(lambda c: c.model))
        )
        self._let_pass(lease_ms, retention_ms)

    @rule(claim=claims, result=RESULTS)
    def complete(self, claim: Granted, result: bytes) -> None:
        self._same(self.real.complete(claim.real, result), self.model.complete(claim.model, result))
        self._let_pass(claim.request.retention_ms)

    @rule(claim=claims, ending=st.sampled_from(Ending), wait_ms=LEASES)
    def release(self, claim: Granted, ending: Ending, wait_ms: int) -> None:
        self._same(
            self.real.release(claim.real, ending, wait_ms),
            self.model.release(claim.model, ending, wait_ms),
        )
        self._let_pass(wait_ms, claim.request.retention_ms)

    @rule(claim=claims)
    def crash(self, claim: Granted) -> None:
        key, owner = claim.real.key, claim.real.owner
        self._same(self.real.crash(key, owner), self.model.crash(key, owner))
        self._let_pass()

    @rule(claim=claims, name=STEPS, value=RESULTS)
    def put_step(self, claim: Granted, name: str, value: bytes) -> None:
        self._same(
            self.real.put_step(claim.real, name, value),
            self.model.put_step(claim.model, name, value),
        )
        self._let_pass(claim.request.lease_ms, claim.request.retention_ms)

    @rule(key=KEYS, task_id=TASKS)
    def settle(self, key: str, task_id: str) -> None:
        self.real.settle(self._key(key), task_id)
        self.model.settle(self._key(key), task_id)
        self._let_pass()

    # --- what an operator does

    @rule(key=KEYS, retention_ms=RETENTIONS)
    def revoke(self, key: str, retention_ms: int) -> None:
        self.real.revoke(self._key(key), retention_ms)
        self.model.revoke(self._key(key), retention_ms)
        self._let_pass(retention_ms)

    @rule(key=KEYS)
    def free(self, key: str) -> None:
        self._same(self.real.free(self._key(key)), self.model.free(self._key(key)))
        self._let_pass()

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self._same(self.real.forget(self._key(key)), self.model.forget(self._key(key)))
        self._let_pass()

    # --- the comparison

    def _key(self, name: str) -> str:
        return f"history-{self.history}:{name}"

    def _claim(self, request: ClaimRequest, again: bool) -> Any:
        real, model = self.real.claim(request), self.model.claim(request)
        self._same(visible(real), visible(model))
        granted: Any = multiple()
        if isinstance(real, Claimed) and isinstance(model, Claimed):
            self._note_fences(request.key, real.claim.fence, model.claim.fence, again)
            granted = Granted(request, real.claim, model.claim)
        self._let_pass(request.lease_ms, request.retention_ms)
        return granted

    def _note_fences(self, key: str, real: int, model: int, again: bool) -> None:
        given = self.fences.setdefault(key, [])
        if again and (real, model) in given:
            return
        before = given[-1] if given else (0, 0)
        assert real > before[0], f"fence {real} after {before[0]}: a fence grows with every claim"
        given.append((real, model))

    def _let_pass(self, *times_ms: int) -> None:
        """Bring both to where everything that is ``OVER`` is over, then compare the records."""
        self.model_clock.pass_ms(OVER + 1)
        if OVER in times_ms:
            self.real_clock.pass_ms(OVER + 1)
        for name in ("a", "b"):
            key = self._key(name)
            self._same(self._seen(key, self.real, 0), self._seen(key, self.model, 1))

    def _seen(self, key: str, store: Store, side: int) -> dict[str, Any] | None:
        record = store.get(key)
        if record is None:
            return None
        given = [pair[side] for pair in self.fences.get(key, [])]
        nth = given.index(record.fence) + 1 if record.fence in given else "put back"
        return {**fields_of(record), "fence": nth if record.fence else "none"}

    @staticmethod
    def _same(real: object, model: object) -> None:
        assert real == model, f"the store says {real!r}, the model {model!r}"


def visible(outcome: Any) -> object:
    """An outcome without what no two stores agree on: the fence's value, exact times."""
    match outcome:
        case Claimed(claim=claim):
            who = (claim.key, claim.owner, claim.task_id, claim.attempt)
            facts = (outcome.crashes, outcome.runs, outcome.crashed)
            return ("claimed", who, facts, dict(outcome.steps))
        case Held():
            assert 0 < outcome.remaining_ms <= LASTS
            return ("held", outcome.waiting, outcome.task_id)
    return outcome


def fields_of(record: Record) -> dict[str, Any]:
    return {
        "state": record.state,
        "owner": record.owner,
        "has a lease": record.lease_until_ms > 0,
        "lease_ms": record.lease_ms,
        "retention_ms": record.retention_ms,
        "fingerprint": record.fingerprint,
        "task_id": record.task_id,
        "attempt": record.attempt,
        "counters": (record.runs, record.crashes, record.failures, record.releases),
        "revoked": record.revoked,
        "result": record.result,
        "created": record.created_ms > 0,
        "done": record.done_ms > 0,
        "steps": dict(record.steps),
        "settled": record.settled,
        "published": dict(record.published),
    }
