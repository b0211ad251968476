"""The claim state machine: pure functions from a record and the store's time to a new record.

Every store does exactly this, atomically for one key. The memory and Django stores call these
functions; the Redis store says the same in Lua, and the conformance suite and the state machine
in ``tests/conformance`` hold the two together.

The rules, in the order in which a claim looks at them:

1. A copy of a task id that is older than the newest attempt published, or running, for that id
   is **superseded**: it is acked without running, so duplicates that retry do not multiply.
2. Same key, other arguments: **reused**, unless the record is free (the work failed or was given
   back, so nothing would be answered wrongly) or it is a newer attempt of the same task id
   (``retry(args=…)`` may change them).
3. Done is looked at **before** poison and revocation: a finished task that is redelivered ten
   times because its ack was lost is done, not poison.
4. Revoked keys are not run.
5. A running claim is **held** until its lease is over by the store's clock (if that went back, the
   lease begins anew). Three exceptions: its
   own owner asks again (the reply to its first claim was lost); a newer attempt of the same task
   id asks, and the key never crashed (then it is the holder that published it, and so has given
   up; after a crash it may have been the one that crashed, and the holder is at work); the lease
   is over, which is a crash.
6. A key that waits for a retry is held for that retry until the hold is over.
7. At ``max_crashes`` the key is **poison**. Counted here, before user code starts.
8. Otherwise the claim is granted, with a fence above every fence before it. An attempt that is
   let in was published, whoever noted that: copies older than it are superseded from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def claim(record: Record | None, request: ClaimRequest, now_us: int) -> tuple[Record, Outcome]:
    """Decide what a delivery gets, and the record after it."""
    now_ms = now_us // 1000
    seen = record or Record(key=request.key, created_ms=now_ms)
    same_task = bool(request.task_id) and seen.task_id == request.task_id

    newest = _newest_attempt(seen, request, same_task)
    if request.attempt < newest:
        return seen, Superseded(newest)
    if _is_reused(seen, request, same_task):
        return seen, Reused(seen.task_id)
    if seen.state is State.DONE:
        settled = request.task_id in seen.settled
        return seen, Done(seen.result or b"", settled, same_task, seen.task_id)
    if seen.revoked:
        return seen, Revoked()

    crashed = False
    if seen.state is State.RUNNING and seen.owner == request.owner:
        again = _renewed(seen, request.lease_ms, request.retention_ms, now_ms)
        return again, Claimed(_claim_of(again), again.steps, again.crashes, again.runs)
    if seen.state is State.RUNNING and not _has_given_up(seen, request, same_task):
        if seen.lease_until_ms > now_ms:
            seen = _by_this_clock(seen, now_ms)
            return seen, Held(seen.lease_until_ms - now_ms, False, seen.task_id)
        crashed = True
        seen = _crashed(seen)
    if seen.state is State.WAITING and not same_task and seen.lease_until_ms > now_ms:
        return seen, Held(seen.lease_until_ms - now_ms, True, seen.task_id)
    if seen.crashes >= request.max_crashes:
        poisoned = replace(
            seen,
            retention_ms=request.retention_ms,
            expires_ms=now_ms + request.retention_ms,
        )
        return poisoned, Poison(seen.crashes)

    granted = replace(
        seen,
        state=State.RUNNING,
        owner=request.owner,
        fence=max(seen.fence + 1, now_us),
        lease_until_ms=now_ms + request.lease_ms,
        lease_ms=request.lease_ms,
        retention_ms=request.retention_ms,
        fingerprint=request.fingerprint,
        task_id=request.task_id,
        attempt=request.attempt,
        runs=seen.runs + 1,
        published=_published(seen, request),
        expires_ms=now_ms + max(request.retention_ms, request.lease_ms),
    )
    return granted, Claimed(
        _claim_of(granted), granted.steps, granted.crashes, granted.runs, crashed
    )


def renew(record: Record | None, lease: Lease, now_us: int) -> tuple[Record | None, bool]:
    """Extend the lease from now, if the owner is still the holder.

    A lease that is over but was taken by nobody is extended: the holder is alive after all, and
    the store has just proved that no one else started. A record that is gone (a flushed store, a
    fail-over) is put back, so that a living holder keeps the key.
    """
    now_ms = now_us // 1000
    if record is None:
        record = _put_back(lease, now_us, now_ms)
    if not _holds(record, lease.owner):
        return record, False
    return _renewed(record, lease.lease_ms, lease.retention_ms, now_ms), True


def complete(
    record: Record | None, claim: Claim, result: bytes, now_us: int
) -> tuple[Record | None, bool]:
    """Record the result, if the claim is still the key's claim. Compare-and-set on the owner.

    Saying it twice is one completion. A record that is gone is written anew: nobody took the key.
    """
    now_ms = now_us // 1000
    if record is None:
        record = _put_back(claim, claim.fence, now_ms)
    if record.state is State.DONE and record.owner == claim.owner:
        return record, True
    if not _holds(record, claim.owner):
        return record, False
    return (
        replace(
            record,
            state=State.DONE,
            result=result,
            done_ms=now_ms,
            lease_until_ms=0,
            retention_ms=claim.retention_ms,
            expires_ms=now_ms + claim.retention_ms,
        ),
        True,
    )


def settle(record: Record | None, task_id: str) -> Record | None:
    """Note that this task id's follow-ups were handed on; nothing unless the work is done."""
    if record is None or record.state is not State.DONE:
        return record
    return replace(record, settled=record.settled | {task_id})


def release(
    record: Record | None, claim: Claim, ending: Ending, wait_ms: int, now_us: int
) -> tuple[Record | None, bool]:
    """Give the key back. For a retry it is held ``wait_ms`` longer, for that task id alone.

    Saying it twice is once: the record remembers who gave it back, until somebody claims it.
    """
    if record is None:
        return None, True
    if record.state in (State.FREE, State.WAITING) and record.owner == claim.owner:
        return record, True
    if not _holds(record, claim.owner):
        return record, False
    now_ms = now_us // 1000
    freed = replace(
        record,
        state=State.FREE,
        lease_until_ms=0,
        expires_ms=now_ms + claim.retention_ms,
    )
    if ending is Ending.FAILURE:
        return replace(freed, failures=freed.failures + 1), True
    if ending is Ending.RELEASE:
        return replace(freed, releases=freed.releases + 1), True
    attempt = claim.attempt + 1
    return (
        replace(
            freed,
            state=State.WAITING,
            attempt=attempt,
            failures=freed.failures + 1,
            published={**freed.published, claim.task_id: attempt},
            lease_until_ms=now_ms + wait_ms,
            expires_ms=now_ms + wait_ms + claim.retention_ms,
        ),
        True,
    )


def crash(record: Record | None, owner: str) -> tuple[Record | None, int | None]:
    """The process that held the claim is known to be gone: free it now and count the crash.

    Returns the crashes of the key, or ``None`` when the owner held nothing any more.
    """
    if record is None or not _holds(record, owner):
        return record, None
    freed = _crashed(record)
    return freed, freed.crashes


def put_step(
    record: Record | None, claim: Claim, name: str, value: bytes, now_us: int
) -> tuple[Record | None, bool]:
    """Record a step of the running claim; refused to everyone else. A record that is gone is put
    back, with the claim's own fence."""
    if record is None:
        now_ms = now_us // 1000
        record = _put_back(claim, claim.fence, now_ms)
        record = _renewed(record, claim.lease_ms, claim.retention_ms, now_ms)
    if not _holds(record, claim.owner):
        return record, False
    return replace(record, steps={**record.steps, name: value}), True


def revoke(record: Record | None, key: str, retention_ms: int, now_us: int) -> Record:
    """Mark the key: no later claim is granted. Outlives restarts, unlike Celery's revokes."""
    now_ms = now_us // 1000
    seen = record or Record(key=key, created_ms=now_ms)
    return replace(seen, revoked=True, expires_ms=max(seen.expires_ms, now_ms + retention_ms))


def free(record: Record | None) -> Record | None:
    """An operator's word: whoever holds the key does no longer; crashes and revocation are
    forgiven; done steps stay done. A done record stays as it is."""
    if record is None or record.state is State.DONE:
        return record
    return replace(record, state=State.FREE, owner="", lease_until_ms=0, crashes=0, revoked=False)


# --- the pieces ------------------------------------------------------------------------


def _newest_attempt(seen: Record, request: ClaimRequest, same_task: bool) -> int:
    published = seen.published.get(request.task_id, 0) if request.task_id else 0
    running = seen.attempt if same_task and seen.state is State.RUNNING else 0
    return max(published, running)


def _has_given_up(seen: Record, request: ClaimRequest, same_task: bool) -> bool:
    """Whether the holder itself published the attempt that asks."""
    return same_task and request.attempt > seen.attempt and seen.crashes == 0


def _published(seen: Record, request: ClaimRequest) -> Mapping[str, int]:
    if not request.task_id or not request.attempt:
        return seen.published
    return {**seen.published, request.task_id: request.attempt}


def _is_reused(seen: Record, request: ClaimRequest, same_task: bool) -> bool:
    if seen.state is State.FREE or not seen.fingerprint or not request.fingerprint:
        return False
    if same_task and (seen.state is State.WAITING or request.attempt > seen.attempt):
        return False
    return seen.fingerprint != request.fingerprint


def _holds(record: Record, owner: str) -> bool:
    return record.state is State.RUNNING and record.owner == owner


def _crashed(record: Record) -> Record:
    return replace(record, state=State.FREE, owner="", lease_until_ms=0, crashes=record.crashes + 1)


def _renewed(record: Record, lease_ms: int, retention_ms: int, now_ms: int) -> Record:
    return replace(
        record,
        lease_ms=lease_ms,
        lease_until_ms=now_ms + lease_ms,
        retention_ms=retention_ms,
        expires_ms=now_ms + max(retention_ms, lease_ms),
    )


def _by_this_clock(record: Record, now_ms: int) -> Record:
    """A lease with more to run than its own length was given by a clock that has gone back: it
    begins anew, or a dead holder would keep the key for as long as the clock was ahead."""
    longest_ms = now_ms + record.lease_ms
    if record.lease_until_ms <= longest_ms:
        return record
    return replace(record, lease_until_ms=longest_ms)


def _claim_of(record: Record) -> Claim:
    return Claim(
        record.key,
        record.owner,
        record.fence,
        record.lease_ms,
        record.retention_ms,
        record.task_id,
        record.attempt,
    )


def _put_back(held: Claim | Lease, fence: int, now_ms: int) -> Record:
    """The record of a living holder, after a flushed store or a fail-over has lost it."""
    return Record(
        key=held.key,
        state=State.RUNNING,
        owner=held.owner,
        fence=fence,
        task_id=held.task_id,
        attempt=held.attempt,
        runs=1,
        created_ms=now_ms,
    )
