"""Is there anything to do? Looked at under the claim, so that nothing happens between the look and
the act (S-I9): ``done_if`` asks the system's own state, ``cooldown_s`` when it was last done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_idem import results
from celery_idem.binding import Binding
from celery_idem.core.errors import LeaseLost, StepBusy
from celery_idem.core.record import Claimed, ClaimRequest, Done, Ending, Held
from celery_idem.delivery import scope_of
from celery_idem.guard import Holding, lease_of, new_owner, refusal
from celery_idem.options import Terms


def run_unless_done(
    task: Any,
    terms: Terms,
    binding: Binding,
    holding: Holding,
    args: Any,
    kwargs: Any,
    body: Callable[[], Any],
) -> Any:
    """The body's result; ``None`` when ``done_if`` says that the work is done; what the last run
    returned when that was within the cool-down.

    Raises :class:`StepBusy` when another task is in the cool-down's own work now.
    """
    if terms.done_if is not None and terms.done_if(*args, **kwargs):
        return None
    if terms.cooldown_ms is None:
        return body()
    return _cooled(task, terms, binding, holding, terms.cooldown_key_of("", args, kwargs), body)


def _cooled(
    task: Any,
    terms: Terms,
    binding: Binding,
    holding: Holding,
    key: str,
    body: Callable[[], Any],
) -> Any:
    """At most once per cool-down: a key of its own, kept done for just as long."""
    cooldown_ms = terms.cooldown_ms or 0
    record_key = f"{scope_of(task.name)}%cooldown:{key}"
    outcome = binding.store.claim(
        ClaimRequest(
            key=record_key,
            owner=new_owner(),
            lease_ms=terms.lease_ms,
            retention_ms=cooldown_ms,
            max_crashes=terms.max_crashes,
        )
    )
    if isinstance(outcome, Done):
        return results.decode_for_task(task, outcome.result)
    if isinstance(outcome, Held):
        raise StepBusy(f"{record_key!r} is being done now", outcome.remaining_ms / 1000)
    if not isinstance(outcome, Claimed):
        raise refusal(record_key, outcome)
    inner = Holding(binding.store, outcome, task)
    binding.keeper.hold(lease_of(inner.claim), lambda _: inner.mark_lost())
    try:
        value = body()
        reference = f"{holding.claim.task_id}-{inner.fence}-cooldown"
        inner.complete(results.encode_for_task(task, value, terms.max_result_bytes, reference))
    except LeaseLost:
        raise
    except BaseException:
        inner.release(Ending.FAILURE)
        raise
    finally:
        binding.keeper.drop(inner.claim.owner)
    return value
