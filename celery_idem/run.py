"""The life of a delivery: claim the key; when granted, run the body, record the result, leave.

Everything else here is what a delivery gets that was not granted, or whose end went otherwise.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

from celery.app.task import Task
from celery.exceptions import Ignore, Reject, Retry

from celery_idem import aborts, followups, results, signals, started, suspects
from celery_idem.binding import Binding, binding_of
from celery_idem.conditions import run_unless_done
from celery_idem.core.errors import (
    AlreadyProcessed,
    BodyAborted,
    IdemError,
    LeaseLost,
    StepBusy,
    StoreUnavailable,
)
from celery_idem.core.record import (
    Claimed,
    ClaimRequest,
    Done,
    Ending,
    Held,
    Outcome,
    Revoked,
    Superseded,
)
from celery_idem.delivery import Delivery
from celery_idem.guard import Holding, lease_of, refusal
from celery_idem.options import Terms
from celery_idem.redeliver import come_back, requeue_later, seconds_until
from celery_idem.run_times import queue_of

logger = logging.getLogger("celery_idem.run")

#: A key is held for its published retry this many leases longer than the retry's delay.
RETRY_GRACE_LEASES = 2

# What a request carries while its body runs: Celery keeps one request per run and thread.
DELIVERY = "_idem_delivery"
HOLDING = "_idem_holding"
RETRY = "_idem_retry"
STEPS = "_idem_steps"
UNSETTLED = "_idem_unsettled"


def _no_dead_letters(task: Any, error: BaseException) -> None:
    """Until dead letters are installed, a final failure is Celery's FAILURE and nothing more."""


#: Called with the task and its error before a final failure leaves the task, and so before the
#: message is acked. ``celery_idem.deadletters.capture.install`` puts the real one here: its room is
#: below this one. Raises ``StoreUnavailable`` when the letter can't be stored.
set_aside: Callable[[Any, BaseException], None] = _no_dead_letters


#: Names of the tasks whose body runs now in this process, as often as it does.
_running: Counter[str] = Counter()


def is_running(task_name: str) -> bool:
    """Whether some thread of this process is in the body of the task."""
    return _running[task_name] > 0


class Run:
    """One delivery of one task."""

    def __init__(self, task: Any, terms: Terms, args: Any, kwargs: Any) -> None:
        self.task = task
        self.terms = terms
        self.args = args
        self.kwargs = kwargs
        self.request: Any = task.request
        self.binding: Binding = binding_of(task.app)
        self.delivery = Delivery.without_key(self.request)

    def once(self) -> Any:
        """The result of the work, whoever did it; or the exception that tells Celery what became
        of this delivery. A final failure leaves a dead letter first."""
        try:
            return self._once()
        except (Ignore, Retry):
            raise
        except Reject as reject:
            self._set_aside(reject, final=not reject.requeue)  # type: ignore[attr-defined]
            raise
        except Exception as error:
            self._set_aside(error, final=True)
            followups.fix_error_ids(self.request, self.delivery.attempt)
            raise

    def _once(self) -> Any:
        try:
            self.delivery = Delivery.of(self.task, self.terms, self.args, self.kwargs)
            setattr(self.request, DELIVERY, self.delivery)
            if self._came_before:
                self._wait_for_the_chords_body()
            asked_at = time.monotonic()
            self._carry_run_times()
            outcome = self.binding.store.claim(self._claim_request())
            if isinstance(outcome, Claimed):
                return self._claimed(Holding(self.binding.store, outcome, self.task, asked_at))
            return self._not_granted(outcome)
        except StoreUnavailable as error:
            # Without a claim, or a record of what was done, the message must not be acked.
            self._go_back(error)

    def _set_aside(self, error: Exception, final: bool) -> None:
        if not final:
            return
        try:
            set_aside(self.task, error)
        except StoreUnavailable as unreachable:
            self._go_back(unreachable)

    def _go_back(self, error: StoreUnavailable) -> NoReturn:
        if self.request.is_eager:
            raise error
        logger.error("%s; the message goes back", error, extra={"key": self.delivery.key})
        come_back(self.task, self.delivery, 0.0, self._lease_s)

    def _claim_request(self) -> ClaimRequest:
        return ClaimRequest(
            key=self.delivery.key,
            owner=self.delivery.owner,
            lease_ms=self.terms.lease_ms,
            retention_ms=self.terms.retention_ms,
            fingerprint=self.delivery.fingerprint,
            task_id=self.delivery.task_id,
            attempt=self.delivery.attempt,
            max_crashes=self.terms.max_crashes,
        )

    # --- granted -------------------------------------------------------------------------

    def _claimed(self, holding: Holding) -> Any:
        setattr(self.request, HOLDING, holding)
        self._say_claimed(holding)
        if not self.delivery.renewed_by_worker:
            self.binding.keeper.hold(lease_of(holding.claim), lambda _: holding.mark_lost())
        _running[self.task.name] += 1
        suspect = holding.crashes > 0 and not self.request.is_eager
        alone = suspect and suspects.enter()
        try:
            if suspect and not alone:
                come_back(self.task, self.delivery, 0.0, self._lease_s)
            holding.begin()
            started.say(self.task)
            value = run_unless_done(
                self.task,
                self.terms,
                self.binding,
                holding,
                self.args,
                self.kwargs,
                self._body,
            )
            retry = getattr(self.request, RETRY, None)
            if retry is not None:  # self.retry(throw=False): the work goes on in the retry
                self._give_back(holding, Ending.RETRY, self._hold_for(retry))
                return value
            return self._complete(holding, value)
        except LeaseLost:
            self._yield_to_the_holder(holding)
        except StoreUnavailable:
            raise
        except StepBusy as busy:
            self._give_back(holding, Ending.RELEASE)
            if self.request.is_eager:
                raise
            come_back(self.task, self.delivery, busy.retry_after_s, self._lease_s)
        except Retry as retry:
            # Refused where the retry has begun already: its claim took over from this one.
            self._give_back(holding, Ending.RETRY, self._hold_for(retry))
            raise
        except Reject as reject:
            self._rejected(holding, reject)
        except Ignore:  # also Task.replace(): the work goes on elsewhere
            self._give_back(holding, Ending.RELEASE)
            raise
        except Exception:
            if not self._give_back(holding, Ending.FAILURE):
                self._yield_to_the_holder(holding)
            raise
        except BaseException as error:
            self._aborted(holding, error)
        finally:
            _running[self.task.name] -= 1
            if alone:
                suspects.leave()
            if not self.delivery.renewed_by_worker:
                self.binding.keeper.drop(holding.claim.owner)

    def _body(self) -> Any:
        # Task.__call__ would push a second, empty request; only somebody else's override of it
        # is called.
        call = self.task._next_call
        if getattr(call, "__func__", None) is Task.__call__:
            call = self.task.run
        began = time.monotonic()
        try:
            value = call(*self.args, **self.kwargs)
        finally:
            self._note_run_time(time.monotonic() - began)
        results.refuse_what_did_not_run(value, str(self.task.name))
        return value

    def _note_run_time(self, seconds: float) -> None:
        """For ``idem tune``; travels with the call that ends this run, or a later one."""
        self.binding.run_times.note(self.task.name, queue_of(self.request), seconds)
        self._carry_run_times()

    def _carry_run_times(self) -> None:
        self.binding.store.carry(self.binding.run_times.due())

    def _complete(self, holding: Holding, value: Any) -> Any:
        reference = f"{self.delivery.task_id}-{holding.fence}"
        limit = self.terms.max_result_bytes
        holding.complete(results.encode_for_task(self.task, value, limit, reference))
        self._hand_on()
        return value

    def _hand_on(self) -> None:
        """What follows is published by Celery after this; then :func:`settle` notes it."""
        if followups.has_followups(self.request):
            followups.fix_ids(self.request)
            setattr(self.request, UNSETTLED, self.delivery.key)

    # --- not granted ---------------------------------------------------------------------

    def _not_granted(self, outcome: Outcome) -> Any:
        match outcome:
            case Done():
                return self._done(outcome)
            case Held():
                self._held(outcome)
            case Superseded():
                raise Ignore(f"superseded by attempt {outcome.attempt} of the same task")
            case Revoked():
                self._close("revoked by an operator")
        raise refusal(self.delivery.key, outcome)

    def _done(self, done: Done) -> Any:
        """A redelivery of the task that did the work hands its follow-ups on, unless that was
        done; a duplicate gets what ``on_duplicate`` says."""
        if done.settled:
            raise Ignore("done and handed on before")
        self._send(signals.duplicate, done_by=done.task_id)
        if not done.same_task:
            if self.task.on_duplicate == "ignore":
                self._close(f"duplicate of {done.task_id}, ignored")
            if self.task.on_duplicate == "raise":
                raise AlreadyProcessed(f"{self.delivery.key!r} is done already, by {done.task_id}")
        value = results.decode_for_task(self.task, done.result)
        self._wait_for_the_chords_body()
        self._hand_on()
        return value

    def _wait_for_the_chords_body(self) -> None:
        """Before what may be a second report of a chord's member, whatever its outcome."""
        claimed_s = 0.0
        if not self.request.is_eager:
            claimed_s = followups.body_claimed_for(self.task.app, self.request)
        if claimed_s:
            come_back(self.task, self.delivery, claimed_s, self._lease_s)

    def _held(self, held: Held) -> NoReturn:
        # Held by this very task: the message of a dead holder, before its lease is over. It is no
        # duplicate, and may be the only copy.
        own = held.task_id == self.delivery.task_id
        action = "wait" if own else self.task.on_conflict
        remaining_s = held.remaining_ms / 1000
        self._send(signals.conflict, held_by=held.task_id, remaining_s=remaining_s, action=action)
        if action == "raise" or self.request.is_eager:
            raise refusal(self.delivery.key, held)
        if action == "skip":
            self._close(f"duplicate of {held.task_id}, which is in progress; skipped")
        come_back(self.task, self.delivery, remaining_s, self._lease_s)

    # --- other endings -------------------------------------------------------------------

    def _rejected(self, holding: Holding, reject: Any) -> NoReturn:
        if not self._give_back(holding, Ending.RELEASE if reject.requeue else Ending.FAILURE):
            self._yield_to_the_holder(holding)
        if not reject.requeue or self.request.is_eager:
            raise reject
        requeue_later(self.task, self.delivery, reject, self.terms.max_requeues)

    def _aborted(self, holding: Holding, error: BaseException) -> NoReturn:
        """The body ended with what is no ``Exception``."""
        if aborts.ends_the_child(error):
            raise error
        awaited = aborts.is_awaited(error, aborts.has_hard_limit(self.task))
        if not self._give_back(holding, Ending.RELEASE if awaited else Ending.FAILURE):
            self._yield_to_the_holder(holding)
        if awaited or self.request.is_eager:
            raise error
        raise BodyAborted(f"the body ended with {error!r}, which is no Exception") from error

    def _yield_to_the_holder(self, holding: Holding) -> NoReturn:
        """This run lost its lease: it reports nothing, and its message comes back to adopt what
        the holder makes of the key."""
        holding.mark_lost()
        if self.request.is_eager:
            raise LeaseLost(f"lease lost: {self.delivery.key!r} was taken over during this run")
        come_back(self.task, self.delivery, self._lease_s, self._lease_s)

    def _give_back(self, holding: Holding, ending: Ending, wait_s: float = 0.0) -> bool:
        try:
            return holding.release(ending, wait_s)
        except IdemError as error:
            # The body's own outcome is what counts; the lease will run out.
            logger.warning(
                "a key could not be given back: %s", error, extra={"key": holding.claim.key}
            )
            return True

    def _close(self, reason: str) -> NoReturn:
        """A ready state that is not success, so that nobody waits for ever and nobody is fooled;
        a chord hears of it, too."""
        self.task.backend.mark_as_revoked(
            self.request.id,
            reason,
            request=self.request,
            store_result=not results.ignores_result(self.task),
        )
        raise Ignore(reason)

    # --- pieces --------------------------------------------------------------------------

    @property
    def _came_before(self) -> bool:
        """Whether this message, or the one that it is a copy of, was delivered before."""
        info = self.request.delivery_info or {}
        return bool(info.get("redelivered")) or self.delivery.waits > 0

    @property
    def _lease_s(self) -> float:
        return self.terms.lease_ms / 1000

    def _hold_for(self, retry: Any) -> float:
        """Seconds that the key is held for its retry."""
        return seconds_until(retry.when) + RETRY_GRACE_LEASES * self._lease_s

    def _say_claimed(self, holding: Holding) -> None:
        self._send(signals.claimed, fence=holding.fence, crashes=holding.crashes)
        if not holding.crashed:
            return
        logger.warning(
            "%s[%s]: taking over after a crash (%d so far)",
            self.task.name,
            self.delivery.task_id,
            holding.crashes,
            extra={"key": self.delivery.key, "task_id": self.delivery.task_id},
        )
        self._send(signals.crashed, crashes=holding.crashes)

    def _send(self, signal: Any, **given: Any) -> None:
        if signal.receivers:
            key, task_id = self.delivery.key, self.delivery.task_id
            signals.send(signal, self.task, key=key, task_id=task_id, **given)


def settle(task: Any) -> None:
    """Called when Celery has published the follow-ups and stored the result of a success."""
    request = task.request
    key = getattr(request, UNSETTLED, None)
    if key is None:
        return
    try:
        binding_of(task.app).store.settle(key, request.id)
    except IdemError as error:
        # A redelivery hands them on again, under the same ids.
        logger.warning("follow-ups could not be noted as handed on: %s", error, extra={"key": key})
