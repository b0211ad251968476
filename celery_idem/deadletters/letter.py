"""A dead letter: the message byte for byte, and what a person needs to judge it."""

from __future__ import annotations

import hashlib
import json
import traceback as tracebacks
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any

#: Hex digits of a letter's id and of an error group's.
ID_DIGITS = 20
GROUP_DIGITS = 12
#: Characters of an error's message and of its traceback that are kept.
MAX_MESSAGE_CHARS = 2_000
MAX_TRACEBACK_CHARS = 20_000
#: Attempts that a letter remembers; the oldest are forgotten first.
MAX_HISTORY = 50

#: Content types that can be read without evaluating anything.
READABLE = ("application/json", "application/x-msgpack", "application/x-yaml")

_NOT_THE_USERS = ("site-packages", "dist-packages", "celery_idem")


class Reason(str, Enum):
    """Why a message is dead."""

    FAILURE = "failure"  #: the task raised, and no retry was asked for
    RETRIES_EXHAUSTED = "retries_exhausted"
    TIME_LIMIT = "time_limit"  #: killed at its hard time limit
    POISON = "poison"  #: its claims ended by a crash max_crashes times
    KEY_CONFLICT = "key_conflict"  #: its key was used with other arguments
    WORKER_LOST = "worker_lost"  #: its process died, and the task asks for no second try
    REJECTED = "rejected"  #: the body raised Reject(requeue=False)
    UNKNOWN_TASK = "unknown_task"
    UNDECODABLE = "undecodable"  #: body, headers or content type can't be read
    EXPIRED = "expired"
    REVOKED = "revoked"
    UNCERTAIN = "uncertain"  #: an at-most-once step may or may not have run
    BROKER = "broker"  #: dead-lettered by the broker itself (x-death says why)


class State(str, Enum):
    """How a letter stands. One state each: the first of these that is so."""

    REPLAYING = "replaying"  #: a replay has it now, or was killed while it had it
    NOT_REPLAYABLE = "not_replayable"  #: something that a replay would need was taken away
    EDITED = "edited"  #: with other arguments than it came with
    AGAIN = "again"  #: it has died more than once
    NEW = "new"


@dataclass(frozen=True, slots=True)
class Message:
    """A message as the broker had it."""

    body: bytes
    content_type: str = ""
    content_encoding: str = ""
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    exchange: str = ""
    routing_key: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong, and where: enough to find all letters of the same fault."""

    error_type: str = ""
    message: str = ""
    traceback: str = ""
    place: str = ""  #: module and function that raised, without the line, which moves
    group: str = ""  #: equal for equal error types raised at the same place


@dataclass(frozen=True, slots=True)
class Attempt:
    """One entry of a letter's history."""

    at_ms: int
    what: str  #: "died", "replayed", "edited", …
    by: str = ""  #: the worker, or the person
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead message. Times are the store's, in milliseconds since 1970."""

    id: str
    reason: Reason
    message: Message
    task: str = ""
    task_id: str = ""
    key: str = ""
    lane: str = ""
    fault: Fault = field(default_factory=Fault)
    retries: int = 0
    crashes: int = 0
    fence: int = 0
    worker: str = ""
    first_died_ms: int = 0
    last_died_ms: int = 0
    times: int = 1  #: how often it died
    position: int = 0  #: orders letters: grows with every death in the store
    history: tuple[Attempt, ...] = ()
    original: Message | None = None  #: before it was edited
    replayable: bool = True  #: False: ``redact`` took something away that a replay would need
    state: State = State.NEW  #: as the store knows it


def resting_state(letter: Letter) -> State:
    """How a letter stands while no replay has it."""
    if not letter.replayable:
        return State.NOT_REPLAYABLE
    if letter.original is not None:
        return State.EDITED
    return State.AGAIN if letter.times > 1 else State.NEW


def letter_id(task_id: str, message: Message, *, shares_id: bool = False) -> str:
    """Stable: the same message that dies twice is one letter. ``shares_id``: another message has
    this task id, too, and may die as well."""
    digest = hashlib.sha256()
    if shares_id:
        digest.update(b"shared:" + task_id.encode("utf-8", "surrogatepass") + b"\0" + message.body)
    elif task_id:
        digest.update(b"id:" + task_id.encode("utf-8", "surrogatepass"))
    else:
        digest.update(b"raw:" + message.queue.encode("utf-8", "surrogatepass") + b"\0")
        headers = json.dumps(message.headers, default=repr, sort_keys=True, skipkeys=True)
        digest.update(headers.encode() + b"\0" + message.body)
    return digest.hexdigest()[:ID_DIGITS]


def lasting(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Properties that belong to the message, not to one delivery of it."""
    return {
        name: value
        for name, value in properties.items()
        if name not in ("delivery_tag", "delivery_info", "idem")
    }


def fault_of(error: BaseException, traceback: TracebackType | None = None) -> Fault:
    """The fault of an exception that was raised here."""
    place = place_in(tracebacks.extract_tb(traceback or error.__traceback__))
    text = "".join(tracebacks.format_exception(type(error), error, error.__traceback__))
    return named_fault(type_name(error), str(error), text, place)


def place_in(frames: Sequence[tracebacks.FrameSummary]) -> str:
    """Where it was raised: the innermost frame of the user's own code, else of any."""
    own = [f for f in frames if not any(part in f.filename for part in _NOT_THE_USERS)]
    last = next(reversed(own or frames), None)
    return f"{_module_of(last.filename)}:{last.name}" if last else ""


def named_fault(error_type: str, message: str, traceback: str = "", place: str = "") -> Fault:
    """A fault from its parts; the group is worked out from type and place."""
    group = hashlib.sha256(f"{error_type}\0{place}".encode("utf-8", "surrogatepass"))
    return Fault(
        error_type,
        message[:MAX_MESSAGE_CHARS],
        traceback[-MAX_TRACEBACK_CHARS:],
        place,
        group.hexdigest()[:GROUP_DIGITS],
    )


def type_name(error: BaseException) -> str:
    """The error's type as it is imported."""
    kind = type(error)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _module_of(filename: str) -> str:
    """The last two parts of a path: the same in every deploy, whatever the folder is called."""
    parts = filename.replace("\\", "/").removesuffix(".py").split("/")
    return ".".join(parts[-2:])
