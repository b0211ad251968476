"""What only the worker's main process sees of a delivery: accepted, timed out, its child lost."""

from __future__ import annotations

import logging
from typing import Any

from billiard.exceptions import Terminated, WorkerLostError
from celery.worker import state

from celery_idem import signals
from celery_idem.binding import binding_of
from celery_idem.core.errors import IdemError
from celery_idem.core.record import Claim, Claimed, ClaimRequest, Ending, Lease, State
from celery_idem.delivery import Delivery, attempt_of, is_broadcast, record_key
from celery_idem.ending import EndingRequest, error_of
from celery_idem.guard import new_owner
from celery_idem.lease import LeaseKeeper
from celery_idem.options import hard_limit_s
from celery_idem.run_times import queue_of

logger = logging.getLogger("celery_idem.request")


class IdempotentRequest(EndingRequest):
    """Celery's request, and: it makes the delivery's owner token, knows its key, keeps its lease
    renewed while the task runs, and frees the key at once when its process is lost."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self._idem_lease = self._make_lease(message)
        self._held: Lease | None = None
        self._comes_back: bool | None = None
        self._being_cancelled = False

    def _make_lease(self, message: Any) -> Lease | None:
        task: Any = self.task
        owner = new_owner()
        headers = self.request_dict
        lease: Lease | None = None
        try:
            terms = task._terms
            # a broadcast is one piece of work for each worker, unless its task or call names it
            everywhere = is_broadcast(task.app, self.delivery_info)
            name = f"{self.id}@{self.hostname}" if everywhere else self.id
            key = record_key(task, terms, name, headers, self.args, self.kwargs)
            attempt = attempt_of(headers, headers.get("retries"))
            lease = Lease(key, owner, terms.lease_ms, terms.retention_ms, self.id, attempt)
        except Exception as error:
            # The child meets the same error, as its task's own failure; the worker lives on.
            logger.debug("no key for a delivery: %s", type(error).__name__)
        Delivery.hand_over(self.request_dict, owner, lease.key if lease else None, message)
        return lease

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        if self._idem_lease is not None:
            self._held = self._idem_lease
            self._keeper.hold(self._idem_lease, self._lost, self._renewed_for_s(), claimed=False)
        super().on_accepted(pid, time_accepted)

    def _renewed_for_s(self) -> float | None:
        """``max_lease_s``, else the hard time limit: this call's, which may be above the task's."""
        task: Any = self.task
        own: float | None = task._terms.max_lease_s
        limit: Any = self.time_limits[0] if self.time_limits else None
        return own or (float(limit) if limit else hard_limit_s(task))

    def acknowledge(self) -> None:
        self._drop()
        if self._is_cancelled:
            return  # a green thread that was killed counts as a success: its message comes back
        super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        self._drop()
        super().reject(requeue)

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        """A pool that can't end a task lets it go on. Celery's error for that would stop a cold
        shutdown half-way, and in the solo pool be the task's own: the handler runs in its body."""
        self._being_cancelled = bool(self.time_start)
        try:
            super().cancel(*args, **kwargs)
        except NotImplementedError:  # the pool has no way to end a job (solo, threads)
            self._being_cancelled = False

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        error = error_of(exc_info)
        if isinstance(error, (WorkerLostError, SystemExit, KeyboardInterrupt)):
            self._lost_process()
        elif isinstance(error, Terminated):
            self._free_after_death(Ending.RELEASE)
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _success_was_stored(self) -> Any:
        """What Celery 5.7 asks after a lost child: where the result is stored, it acks. A chord's
        member is counted after that, so its message comes again, and is done and handed on."""
        if self._context.chord and self.task.reject_on_worker_lost:  # type: ignore[attr-defined]
            return False
        ask = getattr(super(), "_success_was_stored", None)
        return ask() if ask is not None else False

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if terminated:  # by revoke(terminate=True): Celery acks now, and reports the death later
            self._free_after_death(Ending.RELEASE)
        super()._announce_revoked(reason, terminated, signum, expired)
        if not terminated:
            self._end_its_wait()

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if not soft:
            self._note_run_time(timeout)
            self._out_of_time()
        super().on_timeout(soft, timeout)

    def _note_run_time(self, seconds: float) -> None:
        """Of a body that was stopped: its own process can't tell any more."""
        task: Any = self.task
        times = binding_of(task.app).run_times
        times.note(task.name, queue_of(self), seconds)
        self._keeper.store.carry(times.due())

    # --- what becomes of the claim -------------------------------------------------------

    def _lost_process(self) -> None:
        """The child is dead: free its claim now, and count the crash unless the worker is being
        stopped. Whoever stops it may have sent the signal to its whole group (systemd does)."""
        lease = self._drop()
        if lease is None:
            return
        if is_being_stopped() or self._is_cancelled:
            self._release(lease, Ending.RELEASE)
            return
        try:
            crashes = self._keeper.store.crash(lease.key, lease.owner)
        except IdemError as error:
            logger.warning(
                "%s[%s]: a lost child's claim is left to its lease: %s", self.name, self.id, error
            )
            return
        if crashes is not None:
            logger.warning(
                "%s[%s]: its child was lost; its claim is free (%d crashes of this key)",
                self.name, self.id, crashes,
                extra={"key": lease.key, "task_id": lease.task_id},
            )  # fmt: skip
            signals.send(
                signals.crashed, self.task, key=lease.key, task_id=lease.task_id, crashes=crashes
            )

    def _free_after_death(self, ending: Ending) -> None:
        """Celery is about to end the child (or has): give its claim back once it runs no more."""
        lease, pid = self._drop(), self._pid()
        if lease is not None and pid is not None:
            self._keeper.when_gone(pid, lambda: self._release(lease, ending))

    def _end_its_wait(self) -> None:
        """A retry that is revoked or expired is not run, and its key waits for nobody: it is taken
        as the retry would take it, and given back."""
        lease, task = self._idem_lease, self.task
        if lease is None or not lease.attempt:
            return
        try:
            record = self._keeper.store.get(lease.key)
            if record is None or record.state is not State.WAITING:
                return
            if record.task_id != lease.task_id:
                return
            outcome = self._keeper.store.claim(
                ClaimRequest(
                    key=lease.key,
                    owner=lease.owner,
                    lease_ms=lease.lease_ms,
                    retention_ms=lease.retention_ms,
                    fingerprint=record.fingerprint,
                    task_id=lease.task_id,
                    attempt=lease.attempt,
                    max_crashes=task._terms.max_crashes,  # type: ignore[attr-defined]
                )
            )
        except IdemError as error:
            logger.warning(
                "%s[%s]: a key is left to wait for a retry that is gone: %s",
                self.name,
                self.id,
                error,
            )
            return
        if isinstance(outcome, Claimed):
            self._release(lease, Ending.RELEASE)

    def comes_back_after_timeout(self) -> bool:
        """What hangs is counted like what crashes: at ``max_crashes`` it is the end (C25)."""
        if self._comes_back is None:
            self._comes_back = super().comes_back_after_timeout() and not self._is_last_crash()
        return self._comes_back

    def _is_last_crash(self) -> bool:
        lease, task = self._idem_lease, self.task
        try:
            record = self._keeper.store.get(lease.key) if lease is not None else None
        except IdemError:
            return False  # it comes back, and is poison then
        most: int = task._terms.max_crashes  # type: ignore[attr-defined]
        return record is not None and record.crashes + 1 >= most

    def _out_of_time(self) -> None:
        """The hard time limit. Celery reports it before it kills the child."""
        if not self.comes_back_after_timeout():
            self._free_after_death(Ending.FAILURE)
            return
        lease, pid = self._drop(), self._pid()
        if lease is not None and pid is not None:
            self._keeper.when_gone(pid, lambda: self._count_crash(lease))

    def _count_crash(self, lease: Lease) -> None:
        try:
            self._keeper.store.crash(lease.key, lease.owner)
        except IdemError as error:
            logger.warning(
                "%s[%s]: a timed-out claim is left to its lease: %s", self.name, self.id, error
            )

    def _release(self, lease: Lease, ending: Ending) -> None:
        claim = Claim(
            lease.key, lease.owner, 0, lease.lease_ms, lease.retention_ms, lease.task_id,
            lease.attempt,
        )  # fmt: skip
        try:
            self._keeper.store.release(claim, ending)
        except IdemError as error:
            logger.warning("%s[%s]: a claim is left to its lease: %s", self.name, self.id, error)

    def _drop(self) -> Lease | None:
        # Not what the keeper still has: it lets go of a lease at the task's time limit by itself.
        lease, self._held = self._held, None
        if lease is not None:
            self._keeper.drop(lease.owner)
        return lease

    def _lost(self, lease: Lease) -> None:
        if not self._is_anothers(lease):
            return  # the body is over, and only Celery's handlers still run
        logger.error(
            "%s[%s]: lease lost: somebody else has the key",
            self.name,
            self.id,
            extra={"key": lease.key, "task_id": lease.task_id},
        )
        signals.send(signals.lease_lost, self.task, key=lease.key, task_id=lease.task_id)

    def _is_anothers(self, lease: Lease) -> bool:
        try:
            record = self._keeper.store.get(lease.key)
        except IdemError:
            return False  # the end of the run will tell
        return record is not None and record.owner not in ("", lease.owner)

    @property
    def _is_cancelled(self) -> bool:
        return self._being_cancelled or bool(getattr(self, "_already_cancelled", False))

    def _pid(self) -> int | None:
        pid: Any = self.worker_pid
        return pid if isinstance(pid, int) else None

    @property
    def _keeper(self) -> LeaseKeeper:
        return binding_of(self.task.app).keeper


def is_being_stopped() -> bool:
    """Whether this worker was asked to stop, warm or cold."""
    # None, False, or an exit code: 0 too
    asked: tuple[Any, Any] = (state.should_stop, state.should_terminate)
    return any(code is not None and code is not False for code in asked)
