"""``self.step``: named parts of a task, each with its own record of being done (S-S1 to S-S3).

A step that is done is not run again: its result is replayed from what the claim brought back, at
no round trip. A new one costs one write. The database comes first, then the effects outside::

    self.step.transaction("order", complete_in_db, order_id)   # exactly once
    self.step("email", send_confirmation, order_id)            # at least once, memoised
    self.step("stock", partner.update, order_id, key=f"api:inventory:{order_id}")   # shared
    self.step("charge", charge, order_id, at_most_once=True)   # never twice; perhaps uncertain
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from celery_idem import results
from celery_idem.binding import Binding
from celery_idem.core import key as keys
from celery_idem.core.errors import IdemError, LeaseLost, StepBusy, StepMisused, StepUncertain
from celery_idem.core.record import (
    Claimed,
    ClaimRequest,
    Done,
    Ending,
    Held,
    ResultKind,
    StoredResult,
)
from celery_idem.core.step import StepRecord, StepState, bare, function_name
from celery_idem.guard import Holding, lease_of, new_owner, refusal

logger = logging.getLogger("celery_idem.steps")

T = TypeVar("T")

#: Characters of a step's name.
MAX_STEP_NAME_CHARS = 200

_NAMESPACE = uuid.UUID("b7a1c5c2-6b0e-5b53-9f0e-1d2f0c1a7e55")
#: Where transactional steps are; looked up by name, because their room is below this one.
_INBOX = "celery_idem.django.inbox"


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
        /,
        *args: Any,
        key: str | None = None,
        at_most_once: bool = False,
        memoise_errors: tuple[type[Exception], ...] = (),
        not_done: tuple[type[Exception], ...] = (),
        keep_result: bool = True,
        **kwargs: Any,
    ) -> T:
        """Run ``function(*args, **kwargs)`` unless the step is done; return its result either way.

        The result is what the task's result serializer makes of it, in the first run as in every
        replay (JSON: a tuple is a list). One that can't be written is returned once, with a
        warning, and is an error on replay: return plain data, or say ``keep_result=False``, which
        returns ``None`` always.

        ``name``: unique in the task. ``key``: a name that other tasks share; whoever comes first
        runs it, under a claim and lease of its own. ``at_most_once``: marked before it runs, so a
        crash in between leaves it uncertain (:class:`StepUncertain`, a person decides) instead of
        running it twice; raising leaves it uncertain too, but for the exceptions in ``not_done``,
        which prove that nothing happened. ``memoise_errors``: exceptions that are an outcome,
        raised again on replay.

        A step that raises is not done. Raises :class:`StepMisused` for a name used twice in one
        run, one recorded under another function, an async function, or a step inside an open
        database transaction (rolled back, it would be recorded as done and be undone);
        :class:`LeaseLost` when somebody else has taken over the task's key.
        """
        self._register(name, function)
        if self._holding is None:
            value = function(*args, **kwargs)
            self._refuse_awaitable(name, function, value)
            return value if keep_result else None  # type: ignore[return-value]
        self._refuse_open_transaction(name)
        call = functools.partial(function, *args, **kwargs)
        seen = self._seen(name, self._known.get(name), function)
        if seen is not None:
            return self._replayed(name, seen, memoise_errors)  # type: ignore[no-any-return]
        self._refuse_when_lost(name)
        if key is not None:
            if at_most_once or memoise_errors:
                raise StepMisused(
                    f"step {name!r}: key= goes neither with at_most_once nor with memoise_errors"
                )
            return self._shared(name, key, function, call, keep_result)  # type: ignore[no-any-return]
        if at_most_once:
            self._put(name, StepRecord(StepState.STARTED, function_name(function)))
        try:
            value = call()
        except memoise_errors as error:
            self._put(name, self._failed(name, function, error))
            raise
        except not_done:
            if at_most_once:
                self._forget(name)
            raise
        record, value = self._done(name, function, value, keep_result)
        self._put(name, record)
        return value

    def transaction(
        self,
        name: str,
        function: Callable[..., T] | None = None,
        /,
        *args: Any,
        using: str = "default",
        writes_too: tuple[str, ...] = (),
        keep_result: bool = True,
        **kwargs: Any,
    ) -> T:
        """Run the function in a database transaction that also holds the record "done": a crash
        at any instant leaves both or neither (S-V8).

        It is a call, not a ``with`` block, because Python can't skip the body of one: this way the
        body can't run although the step is done. ``using``: the Django database alias that the
        effect is in; that database needs the tables of ``celery_idem.django``. A write to another
        alias meanwhile is an error, because it would be in another transaction; ``writes_too``
        names those for which that is meant.

        May be called inside ``atomic``: the step is then done when the outermost one commits.

        Raises beside what a step raises: :class:`StepBusy` when another run is inside the step.
        """
        if function is None:
            raise StepMisused(
                f"step {name!r}: transaction() needs the function to run. It is no with block, "
                "whose body Python could not skip when the step is done: "
                f"self.step.transaction({name!r}, function, …)"
            )
        self._register(name, function)
        inbox = importlib.import_module(_INBOX)

        def pack(value: Any) -> tuple[bytes, Any]:
            record, result = self._done(name, function, value, keep_result)
            return record.pack(), result

        def unpack(packed: bytes) -> Any:
            seen = self._seen(name, StepRecord.unpack(packed), function)
            return self._replayed(name, seen, ()) if seen is not None else None

        def note(packed: bytes) -> None:
            self._note(name, StepRecord.unpack(packed))

        step = inbox.InboxStep(
            name=name,
            using=using,
            writes_too=writes_too,
            shows_key=self._binding is None or not self._binding.settings.hash_keys,
            call=functools.partial(function, *args, **kwargs),
            pack=pack,
            unpack=unpack,
            note=note,
        )
        if self._holding is None:
            value = inbox.run_step(step, None)
            self._refuse_awaitable(name, function, value)
            return value if keep_result else None  # type: ignore[return-value]
        seen = self._seen(name, self._known.get(name), function)
        if seen is not None:
            return self._replayed(name, seen, ())  # type: ignore[no-any-return]
        self._refuse_when_lost(name)
        return inbox.run_step(step, self._holding.claim)  # type: ignore[no-any-return]

    def key(self, name: str) -> str:
        """A stable idempotency key for what the step calls (payment APIs take one in a header):
        the same in every attempt and replay of this work, different for every step and job."""
        if self._holding is None:
            return str(uuid.uuid4())
        return str(uuid.uuid5(_NAMESPACE, f"{self._holding.claim.key}\0{name}"))

    def done(self, name: str) -> bool:
        """Whether the step is recorded as done."""
        seen = self._known.get(name)
        return seen is not None and seen.state == StepState.DONE

    # --- pieces --------------------------------------------------------------------------

    def _register(self, name: str, function: Callable[..., Any]) -> None:
        if not isinstance(name, str) or not name or len(name) > MAX_STEP_NAME_CHARS:
            raise StepMisused(
                f"a step's name must be 1 to {MAX_STEP_NAME_CHARS} characters, not {name!r}"
            )
        if not callable(function):
            raise StepMisused(f"step {name!r} needs a function to run, not {function!r}")
        if inspect.iscoroutinefunction(bare(function)):
            raise StepMisused(
                f"step {name!r}: {function_name(function)} is async, and a Celery task "
                "body is not; give a plain function (asyncio.run inside it, where you must)"
            )
        with self._lock:
            if name in self._names:
                raise StepMisused(
                    f"step {name!r} is used twice in one run: the second would get the first "
                    'one\'s result; in a loop put the item into the name (f"line:{line.id}")'
                )
            self._names.add(name)

    def _seen(
        self, name: str, seen: StepRecord | None, function: Callable[..., Any]
    ) -> StepRecord | None:
        """The record of an earlier run that can be replayed."""
        if seen is None:
            return None
        if seen.function != function_name(function):
            raise StepMisused(
                f"step {name!r} was recorded under {seen.function} and is now "
                f"{function_name(function)}: give the new one another name, or keep the old "
                "function until its jobs are done"
            )
        if seen.state == StepState.STARTED:
            raise StepUncertain(
                f"step {name!r} was started and not seen to end: its effect may or may not have "
                "happened. Find out, then replay the dead letter or delete it"
            )
        return seen

    def _replayed(self, name: str, seen: StepRecord, errors: tuple[type[Exception], ...]) -> Any:
        if seen.state == StepState.FAILED:
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
            StepState.FAILED,
            function_name(function),
            self._encode(name, args),
            f"{kind.__module__}.{kind.__qualname__}",
        )

    def _shared(
        self,
        name: str,
        key: str,
        function: Callable[..., Any],
        call: Callable[[], Any],
        keep_result: bool,
    ) -> Any:
        """A step under a key that other tasks share, with its own claim and lease; then noted as
        one of ours, so that a later run need not ask again."""
        holding, binding = self._held(), self._bound()
        record_key = f"%step:{keys.check_key(key, f'step {name!r}')}"
        outcome = binding.store.claim(
            ClaimRequest(
                key=record_key,
                owner=new_owner(),
                lease_ms=holding.claim.lease_ms,
                retention_ms=holding.claim.retention_ms,
                max_crashes=binding.settings.max_crashes,
            )
        )
        if isinstance(outcome, Done):
            record = StepRecord.unpack(outcome.result)
            seen = self._seen(name, record, function)
            self._put(name, record)
            return self._replayed(name, seen or record, ())
        if isinstance(outcome, Held):
            raise StepBusy(
                f"step {name!r}: {key!r} is being run by another task", outcome.remaining_ms / 1000
            )
        if not isinstance(outcome, Claimed):
            raise refusal(record_key, outcome)
        step = Holding(binding.store, outcome, self._task)
        binding.keeper.hold(lease_of(step.claim), lambda _: step.mark_lost())
        try:
            record, value = self._done(name, function, call(), keep_result)
            step.complete(record.pack())
        except LeaseLost:
            raise StepBusy(f"step {name!r}: {key!r} was taken over by another task", 0.0) from None
        except BaseException:
            with contextlib.suppress(IdemError):  # the step's own error is what counts
                step.release(Ending.FAILURE)
            raise
        finally:
            binding.keeper.drop(step.claim.owner)
        self._put(name, record)
        return value

    def _done(
        self, name: str, function: Callable[..., Any], value: Any, keep_result: bool
    ) -> tuple[StepRecord, Any]:
        """The record of a step that has run, and its result as every replay will give it."""
        self._refuse_awaitable(name, function, value)
        packed = self._encode(name, value if keep_result else None)
        kept = StoredResult.unpack(packed).kind is ResultKind.INLINE
        result = self._decode(packed) if kept else value
        return StepRecord(StepState.DONE, function_name(function), packed), result

    def _note(self, name: str, record: StepRecord) -> None:
        """Note a step whose truth is elsewhere: the record only saves the next run a query."""
        try:
            self._put(name, record)
        except IdemError as error:
            logger.warning("step %r is done, but could not be noted: %s", name, error)

    def _put(self, name: str, record: StepRecord) -> None:
        holding = self._held()
        if holding.known_lost or not holding.store.put_step(holding.claim, name, record.pack()):
            holding.mark_lost()
            raise LeaseLost(f"step {name!r}: somebody else has taken over {holding.claim.key!r}")
        self._known[name] = record

    def _refuse_when_lost(self, name: str) -> None:
        holding = self._held()
        if holding.lost:
            raise LeaseLost(f"step {name!r}: somebody else has taken over {holding.claim.key!r}")

    def _refuse_open_transaction(self, name: str) -> None:
        alias = _open_transaction()
        if alias is not None:
            raise StepMisused(
                f"step {name!r} is called inside an open transaction on database {alias!r}: if "
                "that is rolled back, the step stays recorded as done although its effect is "
                "undone. Call it outside of atomic(), or use self.step.transaction(…)"
            )

    def _refuse_awaitable(self, name: str, function: Callable[..., Any], value: Any) -> None:
        if not inspect.isawaitable(value):
            return
        if inspect.iscoroutine(value):
            value.close()
        raise StepMisused(
            f"step {name!r}: {function_name(function)} returned an awaitable, so nothing "
            "has run; give a plain function (asyncio.run inside it, where you must)"
        )

    def _forget(self, name: str) -> None:
        holding = self._held()
        holding.store.put_step(holding.claim, name, b"")
        self._known.pop(name, None)

    def _encode(self, name: str, value: Any) -> bytes:
        limit = self._bound().settings.max_result_bytes
        claim = self._held().claim
        reference = f"{claim.task_id}-{claim.fence}-{name}"
        packed = results.encode_for_task(self._task, value, limit, reference)
        if StoredResult.unpack(packed).kind is ResultKind.LOST:
            logger.warning(
                "the result of step %r can't be kept; if the task comes back after it, the step is "
                "done but its result is an error: return plain data, or say keep_result=False",
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


def _open_transaction() -> str | None:
    """The alias of a Django transaction that is open in this thread; a ``TestCase``'s own, which
    wraps everything, does not count."""
    module = sys.modules.get("django.db")
    for connection in module.connections.all(initialized_only=True) if module else ():
        if any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            return str(connection.alias)
    return None
