"""``self.step``: named parts of a task, each with its own record of being done (S-S1 to S-S3).

A step that is done is not run again: its result is replayed from what the claim brought back, at
no round trip. A new one costs one write. The database comes first, then the effects outside::

    self.step.transaction("order", complete_in_db, order_id)   # exactly once
    self.step("email", send_confirmation, order_id)            # at least once, memoised
    self.step("stock", partner.update, order_id, key=f"api:inventory:{order_id}")   # shared
    self.step("charge", charge, order_id, at_most_once=True)   # never twice; perhaps uncertain
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from celery_idem import results
from celery_idem.binding import Binding
from celery_idem.core import key as keys
from celery_idem.core.errors import IdemError, LeaseLost, StepBusy, StepMisused, StepUncertain
from celery_idem.core.record import Claimed, ClaimRequest, Done, Ending, Held, StoredResult
from celery_idem.guard import Holding, lease_of, new_owner, refusal

logger = logging.getLogger("celery_idem.steps")

T = TypeVar("T")

#: Characters of a step's name.
MAX_STEP_NAME_CHARS = 200

_DONE, _STARTED, _FAILED = "done", "started", "failed"
_NAMESPACE = uuid.UUID("b7a1c5c2-6b0e-5b53-9f0e-1d2f0c1a7e55")
#: Where the transactional step of a framework is; looked up by name, its room is below this one.
_TRANSACTION = "celery_idem.django.inbox:run_step"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What is kept of a step: how it stands, under which function, and its packed result."""

    state: str
    function: str
    result: bytes = b""
    error: str = ""  #: qualified name of a memoised exception

    def pack(self) -> bytes:
        head = json.dumps([self.state, self.function, self.error])
        return head.encode() + b"\n" + self.result

    @classmethod
    def unpack(cls, packed: bytes) -> StepRecord:
        head, _, result = packed.partition(b"\n")
        state, function, error = json.loads(head)
        return cls(state, function, result, error)


class Steps:
    """The steps of one run. Safe to use from several threads of the body."""

    def __init__(self, task: Any, holding: Holding | None, binding: Binding | None) -> None:
        self._task = task
        self._holding = holding
        self._binding = binding
        self._lock = threading.Lock()
        self._names: set[str] = set()
        known = holding.steps if holding else {}
        self._known = {name: StepRecord.unpack(v) for name, v in known.items() if v}

    def __call__(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        key: str | None = None,
        at_most_once: bool = False,
        memoise_errors: tuple[type[Exception], ...] = (),
        not_done: tuple[type[Exception], ...] = (),
        **kwargs: Any,
    ) -> T:
        """Run ``function(*args, **kwargs)`` unless the step is done; return its result either way.

        ``name``: unique in the task. ``key``: a name that other tasks share; whoever comes first
        runs it. ``at_most_once``: marked before it runs, so a crash in between leaves it
        uncertain (:class:`StepUncertain`, a person decides) instead of running it twice; raising
        leaves it uncertain too, but for the exceptions in ``not_done``, which prove that nothing
        happened. ``memoise_errors``: exceptions that are an outcome, raised again on replay.

        A step that raises is not done. Raises :class:`StepMisused` for a name used twice in one
        run, one recorded under another function, or an async function; :class:`LeaseLost` when
        somebody else has taken over the task's key.
        """
        self._register(name, function)
        if self._holding is None:
            return function(*args, **kwargs)
        if key is not None:
            if at_most_once:
                raise StepMisused(f"step {name!r}: key= and at_most_once=True exclude each other")
            return self._shared(name, key, functools.partial(function, *args, **kwargs))
        seen = self._seen(name, function)
        if seen is not None:
            return self._replayed(name, seen, memoise_errors)  # type: ignore[no-any-return]
        if at_most_once:
            self._put(name, StepRecord(_STARTED, _named(function)))
        try:
            value = function(*args, **kwargs)
        except memoise_errors as error:
            self._put(name, self._failed(name, function, error))
            raise
        except not_done:
            if at_most_once:
                self._forget(name)
            raise
        self._put(name, StepRecord(_DONE, _named(function), self._encode(name, value)))
        return value

    def transaction(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        using: str = "default",
        **kwargs: Any,
    ) -> T:
        """Run the function in a database transaction that also holds the record "done": a crash
        at any instant leaves both or neither (S-V8).

        It is a call, not a ``with`` block, because Python can't skip the body of one: this way the
        body can't run although the step is done. ``using``: the Django database alias that the
        effect is in; a write to another alias during the step is an error, because it would be in
        another transaction.
        """
        self._register(name, function)
        call = functools.partial(function, *args, **kwargs)
        place, _, attribute = _TRANSACTION.partition(":")
        run_step = getattr(importlib.import_module(place), attribute)
        if self._holding is None:
            return run_step(call, None, name, using, None, None)  # type: ignore[no-any-return]
        seen = self._seen(name, function)
        if seen is not None:
            return self._replayed(name, seen, ())  # type: ignore[no-any-return]
        value, packed = run_step(
            call,
            self._holding.claim.key,
            name,
            using,
            functools.partial(self._encode, name),
            self._decode,
        )
        try:
            self._put(name, StepRecord(_DONE, _named(function), packed))
        except LeaseLost:
            raise
        except IdemError as error:
            # The truth is in the database already; the record only saves the next run a query.
            logger.warning("step %r is done, but could not be noted: %s", name, error)
        return value  # type: ignore[no-any-return]

    def key(self, name: str) -> str:
        """A stable idempotency key for what the step calls (payment APIs take one in a header):
        the same in every attempt and replay of this work, different for every step and job."""
        if self._holding is None:
            return str(uuid.uuid4())
        return str(uuid.uuid5(_NAMESPACE, f"{self._holding.claim.key}\0{name}"))

    def done(self, name: str) -> bool:
        """Whether the step is recorded as done."""
        seen = self._known.get(name)
        return seen is not None and seen.state == _DONE

    # --- pieces --------------------------------------------------------------------------

    def _register(self, name: str, function: Callable[..., Any]) -> None:
        if not isinstance(name, str) or not name or len(name) > MAX_STEP_NAME_CHARS:
            raise StepMisused(
                f"a step's name must be 1 to {MAX_STEP_NAME_CHARS} characters, not {name!r}"
            )
        if not callable(function):
            raise StepMisused(f"step {name!r} needs a function to run, not {function!r}")
        if inspect.iscoroutinefunction(_bare(function)):
            raise StepMisused(
                f"step {name!r}: {_named(function)} is async, and a Celery task body is not; give "
                "a plain function (asyncio.run inside it, where you must)"
            )
        with self._lock:
            if name in self._names:
                raise StepMisused(
                    f"step {name!r} is used twice in one run: the second would get the first "
                    'one\'s result; in a loop put the item into the name (f"line:{line.id}")'
                )
            self._names.add(name)

    def _seen(self, name: str, function: Callable[..., Any]) -> StepRecord | None:
        seen = self._known.get(name)
        if seen is None:
            return None
        if seen.function != _named(function):
            raise StepMisused(
                f"step {name!r} was recorded under {seen.function} and is now {_named(function)}: "
                "give the new one another name, or keep the old function until its jobs are done"
            )
        if seen.state == _STARTED:
            raise StepUncertain(
                f"step {name!r} was started and not seen to end: its effect may or may not have "
                "happened. Find out, then replay the dead letter or delete it"
            )
        return seen

    def _replayed(self, name: str, seen: StepRecord, errors: tuple[type[Exception], ...]) -> Any:
        if seen.state == _FAILED:
            for kind in errors:
                if f"{kind.__module__}.{kind.__qualname__}" == seen.error:
                    raise kind(*self._decode(seen.result))
            raise StepMisused(
                f"step {name!r} ended in {seen.error}, which memoise_errors no longer names"
            )
        return self._decode(seen.result)

    def _failed(self, name: str, function: Callable[..., Any], error: Exception) -> StepRecord:
        kind = type(error)
        args = [a if isinstance(a, (str, int, float, bool)) else repr(a) for a in error.args]
        return StepRecord(
            _FAILED,
            _named(function),
            self._encode(name, args),
            f"{kind.__module__}.{kind.__qualname__}",
        )

    def _shared(self, name: str, key: str, call: Callable[[], T]) -> T:
        """A step under a key that other tasks share, with its own claim and lease."""
        holding, binding = self._held(), self._bound()
        claim = holding.claim
        record_key = f"step:{keys.check_key(key, f'step {name!r}')}"
        outcome = binding.store.claim(
            ClaimRequest(
                key=record_key,
                owner=new_owner(),
                lease_ms=claim.lease_ms,
                retention_ms=claim.retention_ms,
                max_crashes=binding.settings.max_crashes,
            )
        )
        if isinstance(outcome, Done):
            return self._decode(outcome.result)  # type: ignore[no-any-return]
        if isinstance(outcome, Held):
            raise StepBusy(
                f"step {name!r}: {key!r} is being run by another task", outcome.remaining_ms / 1000
            )
        if not isinstance(outcome, Claimed):
            raise refusal(record_key, outcome)
        step = Holding(binding.store, outcome, self._task)
        binding.keeper.hold(lease_of(step.claim), lambda _: step.mark_lost())
        try:
            value = call()
            step.complete(self._encode(name, value))
        except LeaseLost:
            raise StepBusy(f"step {name!r}: {key!r} was taken over by another task", 0.0) from None
        except BaseException:
            step.release(Ending.FAILURE)
            raise
        finally:
            binding.keeper.drop(step.claim.owner)
        return value

    def _put(self, name: str, record: StepRecord) -> None:
        holding = self._held()
        if holding.known_lost or not holding.store.put_step(holding.claim, name, record.pack()):
            holding.mark_lost()
            raise LeaseLost(f"step {name!r}: somebody else has taken over {holding.claim.key!r}")
        self._known[name] = record

    def _forget(self, name: str) -> None:
        holding = self._held()
        holding.store.put_step(holding.claim, name, b"")
        self._known.pop(name, None)

    def _encode(self, name: str, value: Any) -> bytes:
        limit = self._bound().settings.max_result_bytes
        claim = self._held().claim
        reference = f"{claim.task_id}-{claim.fence}-{name}"
        packed = results.encode_for_task(self._task, value, limit, reference)
        if StoredResult.unpack(packed).kind.value == "lost":
            logger.warning(
                "the result of step %r can't be kept; if the task comes back after it, the step is "
                "done but its result is an error: return plain data from steps",
                name,
                extra={"key": claim.key},
            )
        return packed

    def _decode(self, packed: bytes) -> Any:
        return results.decode_for_task(self._task, packed)

    def _held(self) -> Holding:
        assert self._holding is not None
        return self._holding

    def _bound(self) -> Binding:
        assert self._binding is not None
        return self._binding


def _bare(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _named(function: Any) -> str:
    bare = _bare(function)
    name = getattr(bare, "__qualname__", type(bare).__qualname__)
    return f"{getattr(bare, '__module__', '')}.{name}"
