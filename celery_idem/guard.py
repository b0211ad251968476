"""Claim → run → complete or release, around any code: used by the task and by ``idempotent``."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, TypeVar, cast

from celery import current_app

from celery_idem import results, signals
from celery_idem.binding import binding_of
from celery_idem.core import key as keys
from celery_idem.core.errors import (
    AlreadyProcessed,
    IdemError,
    InProgress,
    KeyReused,
    KeyRevoked,
    LeaseLost,
    Poisoned,
    ResultUnavailable,
)
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
    Reused,
    Revoked,
    StoredResult,
)
from celery_idem.core.settings import number
from celery_idem.lease import RENEW_AT, LeaseKeeper
from celery_idem.stores.base import Store

logger = logging.getLogger("celery_idem.guard")

F = TypeVar("F", bound=Callable[..., Any])


def new_owner() -> str:
    """A token for one delivery: 96 random bits."""
    return os.urandom(12).hex()


class Holding:
    """A granted claim while its work runs."""

    def __init__(
        self,
        store: Store,
        claimed: Claimed,
        sender: Any = None,
        asked_at: float | None = None,
    ) -> None:
        """``asked_at``: when the claim was asked for (monotonic seconds); default: now. A process
        that was paused before it read the answer may have lost the lease already."""
        self.store = store
        self.claim: Claim = claimed.claim
        self.steps: Mapping[str, bytes] = claimed.steps
        self.crashes = claimed.crashes
        self.crashed = claimed.crashed
        self._sender = sender
        self._lost = False
        since = time.monotonic() if asked_at is None else asked_at
        self._sure_until = since + self._look_every_s

    @property
    def fence(self) -> int:
        """Grows with every claim of the key: present it in your own compare-and-set."""
        return self.claim.fence

    @property
    def known_lost(self) -> bool:
        """Whether the loss is known already; asks nobody."""
        return self._lost

    @property
    def lost(self) -> bool:
        """Whether somebody else has the key by now. Asks the store at most every third of a
        lease; once true, it stays true."""
        if not self._lost and time.monotonic() >= self._sure_until:
            try:
                mine = self.store.renew([lease_of(self.claim)])[0]
            except IdemError:
                return False  # the store can't be asked; the end of the run will tell
            self._sure_until = time.monotonic() + self._look_every_s
            if not mine:
                self.mark_lost()
        return self._lost

    def mark_lost(self) -> None:
        """Note the loss and tell whoever listens, once."""
        if self._lost:
            return
        self._lost = True
        logger.error(
            "lease lost: somebody else has the key; this run records nothing any more",
            extra={"key": self.claim.key, "task_id": self.claim.task_id},
        )
        signals.send(
            signals.lease_lost, self._sender, key=self.claim.key, task_id=self.claim.task_id
        )

    def begin(self) -> None:
        """Before the body: raises :class:`LeaseLost` when this process slept over its lease, and
        somebody else has the key. The store is asked only if the claim is old."""
        if self.lost:
            raise LeaseLost(_lost_text(self.claim))

    def check(self) -> None:
        """Ask the store now. Raises :class:`LeaseLost` when somebody else has the key."""
        if self._lost or not self.store.renew([lease_of(self.claim)])[0]:
            self.mark_lost()
            raise LeaseLost(_lost_text(self.claim))
        self._sure_until = time.monotonic() + self._look_every_s

    def complete(self, result: bytes) -> None:
        """Record the result. Raises :class:`LeaseLost` when the claim is no longer the key's."""
        if self._lost or not self.store.complete(self.claim, result):
            self.mark_lost()
            raise LeaseLost(_lost_text(self.claim))
        signals.send(
            signals.completed,
            self._sender,
            key=self.claim.key,
            task_id=self.claim.task_id,
            fence=self.claim.fence,
        )

    def release(self, ending: Ending, wait_s: float = 0.0) -> bool:
        """Give the key back; ``False`` when it was lost already."""
        mine = not self._lost and self.store.release(self.claim, ending, round(wait_s * 1000))
        if mine:
            signals.send(
                signals.released,
                self._sender,
                key=self.claim.key,
                task_id=self.claim.task_id,
                ending=ending.value,
            )
        return mine

    @property
    def _look_every_s(self) -> float:
        return self.claim.lease_ms / 1000 * RENEW_AT


def lease_of(claim: Claim) -> Lease:
    """What the keeper renews for this claim."""
    return Lease(
        claim.key, claim.owner, claim.lease_ms, claim.retention_ms, claim.task_id, claim.attempt
    )


def refusal(key: str, outcome: Outcome) -> IdemError:
    """The error for a claim that was not granted."""
    match outcome:
        case Held(remaining_ms=remaining_ms, task_id=task_id):
            by = f" by task {task_id}" if task_id else ""
            return InProgress(
                f"{key!r} is in progress{by}; its lease could be over in "
                f"{remaining_ms / 1000:.1f} s",
                remaining_ms / 1000,
            )
        case Reused(task_id=task_id):
            by = f" (task {task_id})" if task_id else ""
            reused = KeyReused(
                f"{key!r} was used with other arguments before{by}; one key names one piece of "
                "work: change the key, or say what counts with fingerprint="
            )
            reused.used_by = task_id
            return reused
        case Poison(crashes=crashes):
            poisoned = Poisoned(
                f"{key!r} ended by a crash {crashes} times and is not run again; find out why, "
                f"then: celery -A proj idem release {key!r}"
            )
            poisoned.crashes = crashes
            return poisoned
        case Revoked():
            return KeyRevoked(f"{key!r} was revoked by an operator")
    return IdemError(f"{key!r}: {outcome}")


class idempotent(ContextDecorator):
    """Guard plain code, outside any task, with the same store, lease and fence (S-I10).

    As a block it raises :class:`AlreadyProcessed` for a duplicate, :class:`InProgress` while
    somebody else runs it, and gives the key back when the block raises::

        with idempotent(f"otp:{user_id}", ttl=60) as claim:
            send_otp(user_id, fence=claim.fence)

    As a decorator the key is a template over the arguments; ``on_duplicate="return"`` gives a
    duplicate the recorded result instead of raising::

        @idempotent("invoice:{order_id}", ttl=86400, on_duplicate="return")
        def make_invoice(order_id): ...

    ``key``: text (or template), at most 255 characters. ``ttl``: seconds that a done key is kept,
    at least 1. ``lease_s``: default from the settings (30); it is renewed while the block runs.
    ``store``: a store; default: the one of ``app``, which is the current Celery app.

    Raises also :class:`KeyReused` (decorator, same key with other arguments), :class:`Poisoned`,
    :class:`KeyRevoked`, :class:`LeaseLost` at the end when the lease was lost, and
    :class:`StoreUnavailable`.
    """

    def __init__(
        self,
        key: str,
        ttl: float,
        *,
        lease_s: float | None = None,
        on_duplicate: str = "raise",
        store: Store | None = None,
        app: Any = None,
    ) -> None:
        number("ttl", ttl, least=1)
        number("lease_s", lease_s, least=0.1, optional=True)
        if on_duplicate not in ("raise", "return"):
            raise ValueError(f"on_duplicate must be 'raise' or 'return', not {on_duplicate!r}")
        self._key = key
        self._ttl_s = ttl
        self._lease_s = lease_s
        self._on_duplicate = on_duplicate
        self._given_store = store
        self._app = app
        self._holding: Holding | None = None
        self._fingerprint = ""

    def __enter__(self) -> Holding:
        if self._holding is not None:
            raise RuntimeError("an idempotent() block is entered twice; make one for each use")
        binding = binding_of(self._app or current_app)
        settings = binding.settings
        store = self._given_store or binding.store
        key = keys.check_key(self._key, "idempotent()")
        lease_s = self._lease_s or settings.lease_s
        outcome = store.claim(
            ClaimRequest(
                key=key,
                owner=new_owner(),
                lease_ms=round(lease_s * 1000),
                retention_ms=round(self._ttl_s * 1000),
                fingerprint=self._fingerprint,
                max_crashes=settings.max_crashes,
            )
        )
        if isinstance(outcome, Done):
            raise AlreadyProcessed(f"{key!r} is done already", self._recorded(outcome.result))
        if not isinstance(outcome, Claimed):
            raise refusal(key, outcome)
        holding = self._holding = Holding(store, outcome)
        self._keeper.hold(lease_of(holding.claim), lambda _: holding.mark_lost())
        return holding

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(exc, None)

    def __call__(self, function: F) -> F:
        if kind := keys.no_plain_function(function):
            raise TypeError(
                f"idempotent() guards plain functions, and {function.__qualname__} is {kind}; "
                "use it inside, around the code that has the effect"
            )
        template = keys.parse_template(self._key)
        signature = inspect.signature(function)
        keys.check_names(template, signature, function.__qualname__)
        said = keys.said(signature)

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            arguments = keys.bind(signature, args, kwargs)
            block = self._for(template.fill(arguments), keys.fingerprint(said(arguments)))
            try:
                block.__enter__()
            except AlreadyProcessed as duplicate:
                if self._on_duplicate == "return":
                    return duplicate.result
                raise
            try:
                value = function(*args, **kwargs)
                results.refuse_what_did_not_run(value, function.__qualname__)
            except BaseException as error:
                block._end(error, None)
                raise
            block._end(None, value)
            return value

        return cast(F, guarded)

    def _for(self, key: str, fingerprint: str) -> idempotent:
        block = idempotent(
            key,
            self._ttl_s,
            lease_s=self._lease_s,
            on_duplicate=self._on_duplicate,
            store=self._given_store,
            app=self._app,
        )
        block._fingerprint = fingerprint
        return block

    @property
    def _keeper(self) -> LeaseKeeper:
        """Renews in the very store that the claim is in."""
        if self._given_store is not None:
            return _keeper_of(self._given_store)
        return binding_of(self._app or current_app).keeper

    def _recorded(self, packed: bytes) -> Any:
        """What a duplicate gets; with an error as the answer, a result not kept is ``None``."""
        try:
            return _plain_result(packed)
        except ResultUnavailable:
            if self._on_duplicate == "return":
                raise
            return None

    def _end(self, error: BaseException | None, value: Any) -> None:
        holding, self._holding = self._holding, None
        if holding is None:
            return
        self._keeper.drop(holding.claim.owner)
        if error is None:
            holding.complete(results.encode(value, "json").pack())
            return
        try:
            holding.release(Ending.FAILURE)
        except IdemError as unreachable:
            # The block's own error is what the caller must see; the lease will run out.
            logger.warning("a key could not be given back: %s", unreachable)


#: One keeper for each store that was ever given, as long as the process lives: stores are few.
_keepers: dict[Store, LeaseKeeper] = {}
_keepers_lock = threading.Lock()


def _keeper_of(store: Store) -> LeaseKeeper:
    with _keepers_lock:
        if store not in _keepers:
            _keepers[store] = LeaseKeeper(lambda: store)
        return _keepers[store]


def _plain_result(packed: bytes) -> Any:
    """The recorded result of plain code. Raises :class:`ResultUnavailable` if it wasn't kept."""
    return results.decode(StoredResult.unpack(packed), ["json"])


def _lost_text(claim: Claim) -> str:
    return (
        f"lease lost: {claim.key!r} was taken over while this run (fence {claim.fence}) was "
        "paused or cut off; what it did is not recorded as done"
    )
