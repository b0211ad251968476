"""What the store knows of a key, what it is asked, and what it answers: plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class State(str, Enum):
    """Where the work of a key stands."""

    FREE = "free"  #: nobody works on it: never ran, failed, released, or crashed
    RUNNING = "running"  #: a claim holds it until the lease is over
    WAITING = "waiting"  #: given back for a retry that is on its way; held for that retry
    DONE = "done"  #: body's effect and result are recorded


class ResultKind(str, Enum):
    """Where a done record's result is."""

    INLINE = "inline"  #: in the record
    REFERENCE = "reference"  #: in Celery's result backend, under the id in the payload
    LOST = "lost"  #: could not be serialised or was too big: a duplicate gets a clear error


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A result as bytes, with what is needed to read it again."""

    kind: ResultKind
    content_type: str = ""
    encoding: str = ""
    payload: bytes = b""

    def pack(self) -> bytes:
        """One byte string: a header line, then the payload as it is."""
        return f"{self.kind.value}|{self.content_type}|{self.encoding}\n".encode() + self.payload

    @classmethod
    def unpack(cls, packed: bytes) -> StoredResult:
        """The inverse of :meth:`pack`; raises ``ValueError`` for bytes that are not one."""
        header, separator, payload = packed.partition(b"\n")
        if not separator:
            raise ValueError("not a stored result: no header line")
        kind, content_type, encoding = header.decode().split("|")
        return cls(ResultKind(kind), content_type, encoding, payload)


@dataclass(frozen=True, slots=True)
class Record:
    """Everything known of one key. Times are the store's clock, never a worker's."""

    key: str
    state: State = State.FREE
    owner: str = ""  #: token of the delivery that holds the claim, or gave it back last
    fence: int = 0  #: grows with every claim, also after the record was deleted
    lease_until_ms: int = 0  #: RUNNING: end of the lease; WAITING: end of the hold for the retry
    lease_ms: int = 0  #: the claim's own length: renewals use it, no reaper's setting
    retention_ms: int = 0
    fingerprint: str = ""
    task_id: str = ""  #: of the last claim
    attempt: int = 0  #: of the last claim, or of the published retry while WAITING
    runs: int = 0  #: claims granted
    crashes: int = 0  #: claims that ended by expiry or by a lost process; only these make poison
    failures: int = 0  #: the task raised
    releases: int = 0  #: given back on purpose
    revoked: bool = False
    result: bytes | None = None  #: a packed :class:`StoredResult` once DONE
    created_ms: int = 0
    done_ms: int = 0
    expires_ms: int = 0  #: when the store may drop the record
    steps: Mapping[str, bytes] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()  #: task ids whose follow-ups were handed on
    published: Mapping[str, int] = field(default_factory=dict)  #: task id → newest attempt sent


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a worker asks for. ``attempt`` grows with every retry of one task id."""

    key: str
    owner: str
    lease_ms: int
    retention_ms: int
    fingerprint: str = ""
    task_id: str = ""
    attempt: int = 0
    max_crashes: int = 3


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run the work of a key now."""

    key: str
    owner: str
    fence: int
    lease_ms: int
    retention_ms: int
    task_id: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """What the lease keeper renews: it needs no fence, the owner token is unique."""

    key: str
    owner: str
    lease_ms: int
    retention_ms: int
    task_id: str = ""
    attempt: int = 0


class Ending(str, Enum):
    """Why a claim is given back by its own holder."""

    RETRY = "retry"  #: a retry was published: the key is held for it
    FAILURE = "failure"  #: the task raised, and no retry follows
    RELEASE = "release"  #: on purpose, nothing went wrong


# --- outcomes of a claim -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claimed:
    """Go. ``crashed`` is true when the claim before this one ended by a crash."""

    claim: Claim
    steps: Mapping[str, bytes] = field(default_factory=dict)
    crashes: int = 0
    runs: int = 1
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The work is done. ``settled``: this task id's follow-ups have been handed on, too."""

    result: bytes
    settled: bool = False
    same_task: bool = False  #: the asking task id is the one that did the work
    task_id: str = ""  #: the task id that did the work


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else has it, for ``remaining_ms`` at least (``waiting``: held for a retry)."""

    remaining_ms: int
    waiting: bool = False
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class Reused:
    """Same key, other arguments."""

    task_id: str = ""


@dataclass(frozen=True, slots=True)
class Poison:
    """Too many crashes."""

    crashes: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """An operator said no."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer attempt of the same task id was published or is running: this copy is stale."""

    attempt: int


Outcome = Claimed | Done | Held | Reused | Poison | Revoked | Superseded
