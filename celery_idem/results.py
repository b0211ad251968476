"""A task's result as bytes in its record, and back. Never a wrong value: bytes or a clear error."""

from __future__ import annotations

import contextlib
import functools
import logging
import types
from typing import Any

from celery import states
from kombu.exceptions import ContentDisallowed, DecodeError, EncodeError
from kombu.serialization import dumps, loads, prepare_accept_content

from celery_idem.core.errors import BodyNotRun, ResultUnavailable
from celery_idem.core.record import ResultKind, StoredResult

logger = logging.getLogger("celery_idem.results")

_NOT_RUN = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)

LOST = StoredResult(ResultKind.LOST)


def ignores_result(task: Any) -> bool:
    """Whether nobody is to see the outcome of the task's current request: a call may say it."""
    own = vars(task.request).get("ignore_result")
    return bool(task.ignore_result if own is None else own)


def refuse_what_did_not_run(value: Any, what: str) -> None:
    """Raise :class:`BodyNotRun` for a coroutine or a generator, which a call only makes: recorded
    as done, the work would never be."""
    if not isinstance(value, _NOT_RUN) and not hasattr(type(value), "__await__"):
        return
    if isinstance(value, (types.CoroutineType, types.GeneratorType)):
        value.close()
    raise BodyNotRun(
        f"{what} returned a {type(value).__name__}, so nothing has run; make it a plain function "
        "(asyncio.run inside it, where you must)"
    )


def encode(value: Any, serializer: str) -> StoredResult:
    """The value in the serializer's bytes; ``LOST`` for one that it can't write.

    A result that can't be serialised must not undo a job that is done.
    """
    try:
        content_type, encoding, payload = dumps(value, serializer=serializer)
    except EncodeError:
        return LOST
    data = payload.encode("utf-8") if isinstance(payload, str) else payload
    return StoredResult(ResultKind.INLINE, content_type, encoding, data)


def decode(stored: StoredResult, accept: Any) -> Any:
    """The value again. Raises :class:`ResultUnavailable` where that can't be."""
    if stored.kind is not ResultKind.INLINE:
        raise ResultUnavailable(
            "the work is done, but its result was not kept: it could not be serialised, or was "
            "larger than max_result_bytes with no result backend to hold it"
        )
    try:
        return loads(
            stored.payload,
            stored.content_type,
            stored.encoding,
            accept=prepare_accept_content(accept),
        )
    except (ContentDisallowed, DecodeError) as error:
        raise ResultUnavailable(f"the recorded result can't be read: {error}") from error


def encode_for_task(task: Any, value: Any, max_bytes: int, reference: str) -> bytes:
    """The packed result of a task, in its backend's serializer.

    One above ``max_bytes`` is put into the result backend under ``reference``, an id of its own,
    so that a run that turns out to have lost its lease overwrites nobody's result.
    """
    backend = task.backend
    serializer = getattr(backend, "serializer", None) or "json"
    if value is None:
        return _packed_none(serializer)
    with contextlib.suppress(AttributeError):
        value = backend.prepare_value(value)
    stored = encode(value, serializer)
    if stored.kind is ResultKind.INLINE and len(stored.payload) > max_bytes:
        stored = _by_reference(backend, value, reference)
    return stored.pack()


@functools.lru_cache
def _packed_none(serializer: str) -> bytes:
    # what most tasks return
    return encode(None, serializer).pack()


def decode_for_task(task: Any, packed: bytes) -> Any:
    """The recorded result of a task. Raises :class:`ResultUnavailable` where that can't be."""
    try:
        stored = StoredResult.unpack(packed)
    except ValueError as error:
        raise ResultUnavailable(f"the recorded result can't be read: {error}") from error
    if stored.kind is ResultKind.REFERENCE:
        return _referred(task.backend, stored.payload.decode())
    accept = getattr(task.backend, "accept", None) or ["json"]
    return decode(stored, accept)


def _by_reference(backend: Any, value: Any, reference: str) -> StoredResult:
    if not _keeps_results(backend):
        return LOST
    try:
        backend.store_result(reference, value, states.SUCCESS)
    except Exception as error:
        # The job is done whatever becomes of its result.
        logger.warning("a large result could not be stored in the result backend: %s", error)
        return LOST
    return StoredResult(ResultKind.REFERENCE, payload=reference.encode())


def _referred(backend: Any, reference: str) -> Any:
    meta = backend.get_task_meta(reference, cache=False)
    if meta.get("status") != states.SUCCESS:
        raise ResultUnavailable(
            "the work is done, but its large result is gone from the result backend; keep it "
            "longer (result_expires) or raise max_result_bytes"
        )
    return meta.get("result")


def _keeps_results(backend: Any) -> bool:
    from celery.backends.base import DisabledBackend

    if isinstance(backend, DisabledBackend):
        return False
    return bool(getattr(backend, "persistent", True)) and "rpc" not in type(backend).__module__
