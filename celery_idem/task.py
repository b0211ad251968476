"""IdempotentTask: a Celery task whose work is done once, on a queue that delivers at least once.

Here are its options and its seams with Celery; the life of a delivery is in
:mod:`celery_idem.run`. The facts of Celery 5.5 to 5.7 that this rests on are in
``docs/celery-seams.md``.
"""

from __future__ import annotations

import sys
from typing import Any

from celery.app.task import Task
from celery.exceptions import Reject

from celery_idem.binding import binding_of
from celery_idem.confirming import confirming
from celery_idem.core import key as keys
from celery_idem.core.errors import NotConfirmed, StepBusy, StepMisused, StepUncertain
from celery_idem.delivery import KEY_HEADER, Delivery
from celery_idem.guard import Holding
from celery_idem.many import Many, refuse_inside_another
from celery_idem.on_commit import OnCommit
from celery_idem.options import (
    Terms,
    check_attributes,
    redelivery_s,
    terms_of,
)
from celery_idem.redeliver import NOT_THE_BROKERS, carried_over, wait_before_it_goes_back
from celery_idem.run import DELIVERY, HOLDING, RETRY, STEPS, Run, is_running
from celery_idem.steps import Steps


class IdempotentTask(OnCommit, Many, Task):  # type: ignore[type-arg]
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

    ``done_if``: a callable of the arguments; the body is skipped when it is true. ``cooldown_s``:
    the key's work is done at most once in so many seconds, over all calls.

    In the body: :attr:`step`, :attr:`fence`, :attr:`lease_lost`.
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

    @property
    def step(self) -> Steps:
        """Named parts of the task, each with its own record of being done.

        In a direct call nothing is recorded: every step just runs. Threads of the body take it
        from the body's own (``step = self.step``); it works in all of them.

        Raises :class:`StepMisused` in a thread that is not the body's own: it could not be told
        from a direct call there, and would record nothing.
        """
        request = self.request
        top: Any = self.request_stack.top
        if top is None and is_running(str(self.name)):
            raise StepMisused(
                f"{self.name}: self.step in a thread of the body knows no task; take it before "
                "the thread starts (step = self.step) and use that"
            )
        steps: Steps | None = getattr(request, STEPS, None)
        if steps is None:
            holding = self._holding
            steps = Steps(self, holding, binding_of(self.app) if holding else None)
            setattr(request, STEPS, steps)
        return steps

    # --- seams with Celery -------------------------------------------------------------

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Checks the options, and installs what a worker of this app needs. Once per app."""
        from celery_idem.worker import install

        super().on_bound(app)
        if is_celerys_own(cls.name):
            _leave_alone(cls, app)
            return
        # First, for who calls may swallow what the check says (Django's checks at a worker's
        # start do): the worker then says it again, and does not start.
        install(app)
        check_attributes(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run once in a worker or eagerly; a direct call is a plain function call, also one of the
        task by its own body."""
        request = self.request
        own_call = request.called_directly or getattr(request, DELIVERY, None) is not None
        if own_call or is_celerys_own(self.name):
            if request.called_directly and not is_celerys_own(self.name):
                refuse_inside_another(self)
            return super().__call__(*args, **kwargs)
        return Run(self, self._terms, args, kwargs).once()

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        *more: Any,
        idem_key: str | None = None,
        lane: str | None = None,
        **options: Any,
    ) -> Any:
        """Celery's, and: ``idem_key`` names this call's work whatever the arguments say;
        ``lane`` sends it to that lane's queue. Both are kept by retries and replays.

        Raises :class:`KeyInvalid` or :class:`ConfigError` for a bad one, before anything is sent.
        """
        return super().apply_async(args, kwargs, *more, **self._named(idem_key, lane, options))

    def apply(
        self,
        args: Any = None,
        kwargs: Any = None,
        *more: Any,
        idem_key: str | None = None,
        lane: str | None = None,
        **options: Any,
    ) -> Any:
        """Celery's, and: ``idem_key`` as in :meth:`apply_async`. A lane must be one, and has no
        further meaning here."""
        options = self._with_key(idem_key, options)
        if lane is not None:
            options = self._in_lane(lane, options)
        return super().apply(args, kwargs, *more, **options)

    def apply_async_on_commit(
        self,
        args: Any = None,
        kwargs: Any = None,
        *,
        using: str | None = None,
        idem_key: str | None = None,
        lane: str | None = None,
        **options: Any,
    ) -> str:
        """:meth:`apply_async` when the transaction commits. A bad key or lane is an error now: then
        it would be too late."""
        options = self._named(idem_key, lane, options)
        return super().apply_async_on_commit(args, kwargs, using=using, **options)

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        """Celery's, and: only the holder of the key may publish a retry, RabbitMQ has to confirm
        it, and where it can't be published the message goes back instead of being dropped.

        Raises :class:`LeaseLost` when somebody else has the key.
        """
        error = kwargs.get("exc") or sys.exc_info()[1]
        if isinstance(error, (StepUncertain, StepBusy)):
            raise error  # one is for a person to decide, the other comes back by itself
        holding = self._holding
        if holding is None or self.request.is_eager:
            return super().retry(*args, **kwargs)
        holding.check()
        try:
            with confirming(self.app) as producer:
                if producer is not None:  # also where the body has given another
                    kwargs["producer"] = producer
                    kwargs.pop("connection", None)
                published = super().retry(*args, **kwargs)
        except NotConfirmed as error:
            wait_before_it_goes_back()
            raise Reject(error, requeue=True) from error
        except Reject as reject:
            # Celery drops the message here. An error of the message itself would be there again.
            reason: Any = reject.args[0] if reject.args else None
            if isinstance(reason, NOT_THE_BROKERS):
                raise reason from None
            wait_before_it_goes_back()
            raise Reject(reason, requeue=True) from reject
        setattr(self.request, RETRY, published)  # throw=False: the body goes on
        return published

    def replace(self, sig: Any) -> Any:
        """Celery's, and: only the holder of the key may publish what replaces its task.

        Raises :class:`LeaseLost` when somebody else has the key.
        """
        if self._holding is not None and not self.request.is_eager:
            self._holding.check()
        return super().replace(sig)

    def add_to_chord(self, sig: Any, lazy: bool = False) -> Any:
        """Celery's, and: only the holder of the key may add to its chord, which would wait for
        both. In a step a run that comes after a crash does not add it again.

        Raises :class:`LeaseLost` when somebody else has the key.
        """
        if self._holding is not None and not self.request.is_eager:
            self._holding.check()
        return super().add_to_chord(sig, lazy)  # type: ignore[call-overload]

    def signature_from_request(
        self,
        request: Any = None,
        args: Any = None,
        kwargs: Any = None,
        *more: Any,
        lane: str | None = None,
        **options: Any,
    ) -> Any:
        """Celery's; what a delivery counted about itself stays behind, and a retry keeps what names
        its work: the key also with other arguments (S-I2), and with other headers. ``lane`` sends
        it on to another lane."""
        own = {}
        if lane is not None:
            routed = self._in_lane(lane, {})
            options.setdefault("queue", routed["queue"])
            own = routed["headers"]
        signature = super().signature_from_request(request, args, kwargs, *more, **options)
        given = self.request if request is None else request
        headers = {
            **Delivery.of_the_work(given.headers or {}),
            **Delivery.without_counts(signature.options.get("headers") or {}),
            **own,
        }
        delivery: Delivery | None = getattr(self.request, DELIVERY, None)
        if delivery is not None and (args is not None or kwargs is not None):
            headers = {**delivery.kept_by_retry(str(self.name)), **headers}
        if headers:
            signature.options["headers"] = headers
        kept = carried_over(given, same_arguments=args is None and kwargs is None)
        for name, value in kept.items():
            signature.options.setdefault(name, value)
        return signature

    # --- pieces --------------------------------------------------------------------------

    @property
    def _holding(self) -> Holding | None:
        return getattr(self.request, HOLDING, None)

    @property
    def _next_call(self) -> Any:
        """``__call__`` of whatever comes after this class in the task's own bases."""
        return super().__call__

    @property
    def _terms(self) -> Terms:
        if self._idem_terms is None:
            settings = binding_of(self.app).settings
            self._idem_terms = terms_of(self, settings, redelivery_s(self.app))
        return self._idem_terms

    def _named(
        self, idem_key: str | None, lane: str | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """The options of a call with its key's header and its lane's queue in them."""
        return self._in_lane(lane, self._with_key(idem_key, options))

    def _with_key(self, idem_key: str | None, options: dict[str, Any]) -> dict[str, Any]:
        if idem_key is None:
            return options
        keys.check_key(idem_key, f"{self.name}: idem_key of a call")
        return {**options, "headers": {**(options.get("headers") or {}), KEY_HEADER: idem_key}}

    def _in_lane(self, lane: str | None, options: dict[str, Any]) -> dict[str, Any]:
        if lane is None and self.lane is None:
            return options
        from celery_idem.lanes.routing import check_priority, has_destination, route_for

        if lane is None and has_destination(options):
            return options  # a retry or a copy, too: it goes back to where it came from
        check_priority(options.get("priority", self.priority))
        return route_for(lane or str(self.lane), binding_of(self.app).settings, options)


def is_celerys_own(task_name: str | None) -> bool:
    """Celery's built-in tasks are left as they are when this is the app's default task class."""
    return bool(task_name) and str(task_name).startswith("celery.")


def _leave_alone(cls: Any, app: Any) -> None:
    cls.Request = "celery.worker.request:Request"
    cls.acks_late = app.conf.task_acks_late
    cls.reject_on_worker_lost = app.conf.task_reject_on_worker_lost
