"""IdempotentTask: a Celery task whose work is done once, on a queue that delivers at least once.

The life of a delivery, in :meth:`IdempotentTask._run_once`: claim the key; when granted, run the
body, record the result, leave. Everything else is what a delivery gets that was not granted.

Facts of Celery 5.5–5.7 that this rests on are in ``docs/celery-seams.md``.
"""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from celery.app.task import Task
from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import EncodeError

from celery_idem import followups, results, signals
from celery_idem.binding import binding_of
from celery_idem.core import key as keys
from celery_idem.core.errors import AlreadyProcessed, IdemError, LeaseLost, StoreUnavailable
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
from celery_idem.on_commit import OnCommit
from celery_idem.options import (
    DEFAULT_VISIBILITY_TIMEOUT_S,
    Terms,
    check_attributes,
    terms_of,
)
from celery_idem.redeliver import come_back, requeue_later, seconds_until

logger = logging.getLogger("celery_idem.task")

#: A key is held for its published retry this many leases longer than the retry's delay.
RETRY_GRACE_LEASES = 2

_DELIVERY = "_idem_delivery"
_HOLDING = "_idem_holding"
_RETRY = "_idem_retry"
_UNSETTLED = "_idem_unsettled"


class IdempotentTask(OnCommit, Task):  # type: ignore[type-arg]
    """Base class for tasks whose effect must happen once.

    ``@app.task(base=IdempotentTask, idem_key="order:{order_id}")``

    Options, as task attributes (``None``: the app's ``idem`` setting decides):

    ``idem_key``: template over the arguments, or a callable of them; absent: the task id, which
    protects against redelivery but not against a producer that sends twice. ``lease_s``,
    ``max_lease_s``, ``retention_s``: seconds. ``max_crashes``: crashes before a key is poison.
    ``on_duplicate``: ``"return"`` the recorded result, ``"ignore"``, ``"raise"``.
    ``on_conflict``: ``"wait"`` until the holder is done, ``"skip"``, ``"raise"``.
    ``fingerprint``: what of the arguments must be the same under one key: all (``True``), nothing
    (``False``), names, or a callable.

    In the body: :attr:`fence`, :attr:`lease_lost`.
    """

    abstract = True
    Request = "celery_idem.request:IdempotentRequest"

    acks_late = True
    reject_on_worker_lost = True

    idem_key: Any = None
    lease_s: float | None = None
    max_lease_s: float | None = None
    retention_s: float | None = None
    max_crashes: int | None = None
    lane: str | None = None
    on_duplicate = "return"
    on_conflict = "wait"
    done_if: Any = None
    cooldown_s: float | None = None
    fingerprint: Any = True

    _idem_terms: Terms | None = None

    # --- what a body looks at ----------------------------------------------------------

    @property
    def fence(self) -> int:
        """A number that grows with every claim of this key: put it into your own compare-and-set.

        0 when the task is called directly, as a plain function.
        """
        holding = self._holding
        return holding.fence if holding else 0

    @property
    def lease_lost(self) -> bool:
        """Whether somebody else has taken the key over. A long body looks at it before an effect;
        the store is asked at most every third of a lease."""
        holding = self._holding
        return holding.lost if holding else False

    # --- seams with Celery -------------------------------------------------------------

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Checks the options, and installs what a worker of this app needs. Once per app."""
        from celery_idem.worker import install

        super().on_bound(app)
        if is_celerys_own(cls.name):
            _leave_alone(cls, app)
            return
        check_attributes(cls)
        install(app)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run once in a worker or eagerly; a direct call is a plain function call."""
        if self.request.called_directly or is_celerys_own(self.name):
            return super().__call__(*args, **kwargs)
        return self._run_once(args, kwargs)

    def apply_async(
        self, args: Any = None, kwargs: Any = None, *more: Any, idem_key: str | None = None,
        lane: str | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Celery's, and: ``idem_key`` names this call's work whatever the arguments say;
        ``lane`` sends it to that lane's queue. Both are kept by retries and replays.

        Raises :class:`KeyInvalid` or :class:`ConfigError` for a bad one, before anything is sent.
        """
        if idem_key is not None:
            keys.check_key(idem_key, f"{self.name}.apply_async(idem_key=…)")
            options["headers"] = {**(options.get("headers") or {}), "idem_key": idem_key}
        lane = lane if lane is not None else self.lane
        if lane is not None:
            options = self._lane_options(lane, options)
        return super().apply_async(args, kwargs, *more, **options)

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        """Celery's, and: only the holder of the key may publish a retry, and a retry that can't be
        published goes back to the queue instead of being dropped.

        Raises :class:`LeaseLost` when somebody else has the key.
        """
        holding = self._holding
        if holding is None or self.request.is_eager:
            return super().retry(*args, **kwargs)
        holding.check()
        try:
            published = super().retry(*args, **kwargs)
        except Reject as reject:
            # Celery drops the message here. An error of the message itself would repeat for ever.
            reason: Any = reject.args[0] if reject.args else None
            if isinstance(reason, EncodeError):
                raise reason from None
            raise Reject(reason, requeue=True) from reject
        setattr(self.request, _RETRY, published)  # throw=False: the body goes on
        return published

    def signature_from_request(
        self, request: Any = None, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> Any:
        """Celery's; what a delivery counted about itself stays behind, and a retry with other
        arguments keeps the key of the work that it retries (S-I2)."""
        signature = super().signature_from_request(request, args, kwargs, *more, **options)
        headers = Delivery.without_counts(signature.options.get("headers") or {})
        delivery: Delivery | None = getattr(self.request, _DELIVERY, None)
        if delivery is not None and (args is not None or kwargs is not None):
            headers = {**delivery.kept_by_retry(str(self.name)), **headers}
        if headers:
            signature.options["headers"] = headers
        return signature

    # --- the life of a delivery --------------------------------------------------------

    def _run_once(self, args: Any, kwargs: Any) -> Any:
        terms = self._terms
        delivery = Delivery.of(self, terms, args, kwargs)
        setattr(self.request, _DELIVERY, delivery)
        store = binding_of(self.app).store
        request = ClaimRequest(
            key=delivery.key,
            owner=delivery.owner,
            lease_ms=terms.lease_ms,
            retention_ms=terms.retention_ms,
            fingerprint=delivery.fingerprint,
            task_id=delivery.task_id,
            attempt=delivery.attempt,
            max_crashes=terms.max_crashes,
        )
        try:
            outcome = store.claim(request)
            if isinstance(outcome, Claimed):
                return self._run_claimed(Holding(store, outcome, self), delivery, args, kwargs)
            return self._not_granted(outcome, delivery)
        except StoreUnavailable as error:
            # Without a claim, or a record of what was done, the message must not be acked.
            if self.request.is_eager:
                raise
            logger.error("%s; the message goes back", error, extra={"key": delivery.key})
            come_back(self, delivery, 0.0, terms.lease_ms / 1000)

    def _run_claimed(self, holding: Holding, delivery: Delivery, args: Any, kwargs: Any) -> Any:
        setattr(self.request, _HOLDING, holding)
        self._say_claimed(holding)
        renewing = not delivery.renewed_by_worker
        keeper = binding_of(self.app).keeper
        if renewing:
            keeper.hold(lease_of(holding.claim), lambda _: holding.mark_lost())
        try:
            value = self._body(args, kwargs)
            retry = getattr(self.request, _RETRY, None)
            if retry is not None:  # self.retry(throw=False): the work goes on in the retry
                self._give_back(holding, Ending.RETRY, self._hold_for(retry))
                return value
            return self._complete(holding, delivery, value)
        except LeaseLost:
            self._yield_to_the_holder(holding, delivery)
        except StoreUnavailable:
            raise
        except Retry as retry:
            # Refused where the retry has begun already: its claim took over from this one.
            self._give_back(holding, Ending.RETRY, self._hold_for(retry))
            raise
        except Reject as reject:
            self._rejected(holding, delivery, reject)
        except Ignore:  # also Task.replace(): the work goes on elsewhere
            self._give_back(holding, Ending.RELEASE)
            raise
        except Exception:
            if not self._give_back(holding, Ending.FAILURE):
                self._yield_to_the_holder(holding, delivery)
            raise
        finally:
            if renewing:
                keeper.drop(holding.claim.owner)

    def _complete(self, holding: Holding, delivery: Delivery, value: Any) -> Any:
        reference = f"{delivery.task_id}-{holding.fence}"
        packed = results.encode_for_task(self, value, self._terms.max_result_bytes, reference)
        holding.complete(packed)
        self._hand_on_as(delivery.key)
        return value

    def _not_granted(self, outcome: Outcome, delivery: Delivery) -> Any:
        match outcome:
            case Done():
                return self._done(outcome, delivery)
            case Held():
                return self._held(outcome, delivery)
            case Superseded():
                raise Ignore(f"superseded by attempt {outcome.attempt} of the same task")
            case Revoked():
                self._close("revoked by an operator")
        raise refusal(delivery.key, outcome)

    def _done(self, done: Done, delivery: Delivery) -> Any:
        """A redelivery of the task that did the work hands its follow-ups on, unless that was
        done; a duplicate gets what ``on_duplicate`` says."""
        if done.settled:
            raise Ignore("done and handed on before")
        signals.send(
            signals.duplicate, self, key=delivery.key, task_id=delivery.task_id,
            done_by=done.task_id,
        )  # fmt: skip
        if not done.same_task:
            if self.on_duplicate == "ignore":
                self._close(f"duplicate of {done.task_id}, ignored")
            if self.on_duplicate == "raise":
                raise AlreadyProcessed(f"{delivery.key!r} is done already, by {done.task_id}")
        value = results.decode_for_task(self, done.result)
        self._hand_on_as(delivery.key)
        return value

    def _held(self, held: Held, delivery: Delivery) -> Any:
        signals.send(
            signals.conflict, self, key=delivery.key, task_id=delivery.task_id,
            held_by=held.task_id, remaining_s=held.remaining_ms / 1000, action=self.on_conflict,
        )  # fmt: skip
        if self.on_conflict == "raise" or self.request.is_eager:
            raise refusal(delivery.key, held)
        if self.on_conflict == "skip":
            self._close(f"duplicate of {held.task_id}, which is in progress; skipped")
        come_back(self, delivery, held.remaining_ms / 1000, self._terms.lease_ms / 1000)

    # --- endings -----------------------------------------------------------------------

    def _rejected(self, holding: Holding, delivery: Delivery, reject: Any) -> NoReturn:
        self._give_back(holding, Ending.RELEASE if reject.requeue else Ending.FAILURE)
        if not reject.requeue or self.request.is_eager:
            raise reject
        requeue_later(self, delivery, reject, self._terms.max_requeues)

    def _yield_to_the_holder(self, holding: Holding, delivery: Delivery) -> NoReturn:
        """This run lost its lease: it reports nothing, and its message comes back to adopt what
        the holder makes of the key."""
        holding.mark_lost()
        if self.request.is_eager:
            raise LeaseLost(f"lease lost: {delivery.key!r} was taken over during this run")
        come_back(self, delivery, self._terms.lease_ms / 1000, self._terms.lease_ms / 1000)

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
        request: Any = self.request
        self.backend.mark_as_revoked(
            request.id, reason, request=request, store_result=not self.ignore_result
        )
        raise Ignore(reason)

    # --- pieces ------------------------------------------------------------------------

    def _body(self, args: Any, kwargs: Any) -> Any:
        # Task.__call__ would push a second, empty request; only somebody else's override of it is
        # called.
        call = super().__call__
        if call.__func__ is Task.__call__:  # type: ignore[attr-defined]
            return self.run(*args, **kwargs)
        return call(*args, **kwargs)

    @property
    def _holding(self) -> Holding | None:
        return getattr(self.request, _HOLDING, None)

    @property
    def _terms(self) -> Terms:
        if self._idem_terms is None:
            app = self.app
            options = app.conf.broker_transport_options or {}
            visibility_s = float(options.get("visibility_timeout", DEFAULT_VISIBILITY_TIMEOUT_S))
            self._idem_terms = terms_of(self, binding_of(app).settings, visibility_s)
        return self._idem_terms

    def _hold_for(self, retry: Retry) -> float:
        """Seconds that the key is held for its retry."""
        return seconds_until(retry.when) + RETRY_GRACE_LEASES * self._terms.lease_ms / 1000

    def _hand_on_as(self, key: str) -> None:
        """What follows is published by Celery after this; then :func:`settle` notes it."""
        if followups.has_followups(self.request):
            followups.fix_ids(self.request)
            setattr(self.request, _UNSETTLED, key)

    def _lane_options(self, lane: str, options: dict[str, Any]) -> dict[str, Any]:
        from celery_idem.lanes.routing import route_for

        routed: dict[str, Any] = route_for(lane, binding_of(self.app).settings, options)
        return routed

    def _say_claimed(self, holding: Holding) -> None:
        claim = holding.claim
        signals.send(
            signals.claimed, self, key=claim.key, task_id=claim.task_id, fence=claim.fence,
            crashes=holding.crashes,
        )  # fmt: skip
        if holding.crashed:
            logger.warning(
                "taking over after a crash (%d so far)", holding.crashes,
                extra={"key": claim.key, "task_id": claim.task_id},
            )  # fmt: skip
            signals.send(
                signals.crashed, self, key=claim.key, task_id=claim.task_id,
                crashes=holding.crashes,
            )  # fmt: skip


def settle(task: Any) -> None:
    """Called when Celery has published the follow-ups and stored the result of a success."""
    key = getattr(task.request, _UNSETTLED, None)
    if key is None:
        return
    try:
        binding_of(task.app).store.settle(key, task.request.id)
    except IdemError as error:
        # A redelivery hands them on again, under the same ids.
        logger.warning("follow-ups could not be noted as handed on: %s", error, extra={"key": key})


def is_celerys_own(task_name: str | None) -> bool:
    """Celery's built-in tasks are left as they are when this is the app's default task class."""
    return bool(task_name) and str(task_name).startswith("celery.")


def _leave_alone(cls: Any, app: Any) -> None:
    cls.Request = "celery.worker.request:Request"
    cls.acks_late = app.conf.task_acks_late
    cls.reject_on_worker_lost = app.conf.task_reject_on_worker_lost
