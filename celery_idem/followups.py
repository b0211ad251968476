"""What is handed on after a task: links and chains with ids that don't change when they are handed
on twice, and the body of a chord.

A redelivery of a done task publishes its callbacks again, since nobody knows whether the first
run got that far (C51). Celery gives a linked signature a new id at every publish; with an id made
from the parent's, an idempotent follow-up recognises the copy.
"""

from __future__ import annotations

import uuid
from typing import Any

#: What Celery writes over a claim to send a chord's body, once it was sent.
_BODY_SENT = (b"done", "done")

_NAMESPACE = uuid.UUID("5f2a4d1e-0f0c-5d0e-9a57-6a2f3f1c7b10")


def has_followups(request: Any) -> bool:
    """Whether anybody waits for this task's outcome: callbacks, a chain, a chord."""
    return bool(request.callbacks or request.chain or request.chord)


def body_claimed_for(app: Any, request: Any) -> float:
    """Seconds for which some worker has the right to send the body of this member's chord; 0 where
    nobody has it.

    Celery from 5.7 on gives it, with its Redis backend, to who counts the last part, and to nobody
    else in that time (``redis.py: CHORD_PART_RETURN_LUA``). If that worker dies, a report of the
    member that comes meanwhile sends nothing and fails in nothing: so it has to come later.
    """
    backend = app.backend
    if not (request.chord and request.group) or not hasattr(backend, "_chord_part_return_script"):
        return 0.0
    key = backend.get_key_for_group(request.group, ".c")
    try:
        # at once: a word that the body was sent, which comes between, is kept for minutes
        claimed, left_ms = backend.client.pipeline().get(key).pttl(key).execute()
    except backend.connection_errors:
        return 0.0  # nor can the member be reported then, and comes again for that
    if claimed is None or claimed in _BODY_SENT:
        return 0.0
    return float(max(0, left_ms)) / 1000


def fix_ids(request: Any) -> None:
    """Give every callback of the request an id that depends on nothing but the parent's."""
    for index, signature in enumerate(request.callbacks or ()):
        _fix(signature, f"{request.id}:{index}")


def fix_error_ids(request: Any, attempt: int) -> None:
    """The same for its errbacks, which Celery sends once the failure is stored: a redelivery
    fails again, under the same attempt. A replay or a retry is a new attempt, and heard of anew."""
    for index, signature in enumerate(request.errbacks or ()):
        _fix(signature, f"{request.id}:{attempt}:error:{index}")


def _fix(signature: Any, seed: str) -> None:
    kind = signature.get("subtask_type")
    inner = _inner(signature, kind)
    if kind in (None, "") or not inner:
        options = signature.setdefault("options", {})
        options.setdefault("task_id", str(uuid.uuid5(_NAMESPACE, seed)))
        return
    for index, part in enumerate(inner):
        if isinstance(part, dict):
            _fix(part, f"{seed}.{index}")


def _inner(signature: Any, kind: Any) -> list[Any]:
    kwargs = signature.get("kwargs") or {}
    if kind in ("chain", "group"):
        return list(kwargs.get("tasks") or ())
    if kind == "chord":
        header = kwargs.get("header") or ()
        parts = [header] if isinstance(header, dict) else list(header)
        return [*parts, kwargs.get("body")]
    return []
