"""Letters back onto their queues: take, publish, delete. Interrupted anywhere, nothing is lost.

Killed between publish and delete, the letter is still there, and a second replay publishes the
message again: with the same task id and the same replay number, so the claim lets one of the two
run, and the other gets its result. The effect happens once. (A plain task has no claim: for it a
replay is at least once.)
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from celery_idem import revoking, signals
from celery_idem.binding import binding_of
from celery_idem.core.record import Record, State
from celery_idem.deadletters import chords
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Attempt, Letter, Reason
from celery_idem.deadletters.publish import own_headers, send
from celery_idem.deadletters.tasks import task_named
from celery_idem.delivery import LANE_HEADER, REPLAYS_HEADER
from celery_idem.lanes.routing import lane_named, lanes_of
from celery_idem.task import IdempotentTask

logger = logging.getLogger("celery_idem.deadletters")

#: For how long a letter is one replay's alone, in milliseconds: free again after a kill.
TAKE_MS = 60_000
#: How long a canary is waited for, in seconds.
CANARY_WAIT_S = 300.0
CANARY_POLL_S = 0.1


class Fate(str, Enum):
    """What becomes, or would become, of a letter."""

    RUN = "run"  #: sent; its body runs
    DONE = "done"  #: sent, but its key is done meanwhile: the recorded result, no second run
    CONFLICT = "conflict"  #: its key is another call's, or somebody works on it now; kept
    REVOKED = "revoked"  #: its key or its task id was revoked; kept
    NO_TASK = "no_task"  #: no such task in this app; kept
    NOT_REPLAYABLE = "not_replayable"  #: no message of Celery's, or redacted; kept
    CHORD_OVER = "chord_over"  #: its chord has been decided without it; kept
    TAKEN = "taken"  #: another replay has it, or it is gone
    FAILED = "failed"  #: the broker did not take it; kept


SENT = (Fate.RUN, Fate.DONE)


@dataclass(frozen=True, slots=True)
class How:
    """How to replay."""

    rate: float = 0.0  #: most letters a second; 0: as fast as it goes
    canary: int = 0  #: send so many first, and wait for their outcome; 0: no canary
    max_failures: int = 0  #: failures of the canary that are borne
    canary_wait_s: float = CANARY_WAIT_S
    lane: str = ""  #: to this lane instead of its own
    delay_s: float = 0.0  #: not before so many seconds
    despite_chord: bool = False  #: also where its chord has failed: the task runs, the chord stays
    by: str = ""  #: who; default: user@host


@dataclass(slots=True)
class Report:
    """What a replay did."""

    fates: dict[Fate, int] = field(default_factory=dict)
    canary_failures: int = 0
    stopped: bool = False  #: the canary failed; the rest was not sent

    def note(self, fate: Fate) -> None:
        """Count one more."""
        self.fates[fate] = self.fates.get(fate, 0) + 1

    @property
    def sent(self) -> int:
        """Letters that were sent."""
        return sum(self.fates.get(fate, 0) for fate in SENT)


Progress = Callable[[Letter, Fate], None]


def fate_of(app: Any, letter: Letter, how: How = How()) -> Fate:
    """What a replay would make of the letter now. Asks the store and changes nothing."""
    if not letter.replayable or not letter.message.headers.get("id"):
        return Fate.NOT_REPLAYABLE
    if task_named(app, letter.task) is None:
        return Fate.NO_TASK
    record = _record(app, letter)
    if revoking.is_revoked(binding_of(app).store, letter.task_id):
        return Fate.REVOKED
    if record is not None:
        if _is_anothers(letter, record):
            return Fate.CONFLICT
        if record.state is State.DONE:
            return Fate.DONE
        if record.revoked:
            return Fate.REVOKED
        if record.state in (State.RUNNING, State.WAITING) and record.lease_until_ms > _now_ms():
            return Fate.CONFLICT
    if not how.despite_chord and chords.is_over(app, letter):
        return Fate.CHORD_OVER
    return Fate.RUN


def dry_run(app: Any, letters: Iterable[Letter], how: How = How()) -> Report:
    """Count what a replay would do."""
    report = Report()
    for letter in letters:
        report.note(fate_of(app, letter, how))
    return report


def replay(
    app: Any,
    letters: Iterable[Letter],
    how: How = How(),
    on_progress: Progress | None = None,
) -> Report:
    """Send letters again. Two at once, or one interrupted and begun anew, are safe.

    Raises :class:`~celery_idem.core.errors.ConfigError` for an unknown lane before anything is
    sent, ``StoreUnavailable`` when the letters can't be reached.
    """
    queue = lane_named(lanes_of(binding_of(app).settings), how.lane).queue if how.lane else ""
    report = Report()
    by = f"{how.by or whoami()}:{os.getpid()}"
    birds: list[Letter] = []
    next_at = time.monotonic()
    for letter in letters:
        if how.rate > 0:
            time.sleep(max(0.0, next_at - time.monotonic()))
            next_at = max(next_at, time.monotonic() - 1.0) + 1.0 / how.rate
        fate = replay_one(app, letter, how, by, queue)
        report.note(fate)
        if on_progress is not None:
            on_progress(letter, fate)
        if how.canary and fate in SENT and len(birds) < how.canary:
            birds.append(letter)
            if len(birds) == how.canary:
                report.canary_failures = _failures(app, birds, how.canary_wait_s)
                if report.canary_failures > how.max_failures:
                    report.stopped = True
                    break
    return report


def replay_one(app: Any, letter: Letter, how: How, by: str, queue: str = "") -> Fate:
    """Take it, send it, delete it."""
    store = letters_of(app)
    taken = store.take(letter.id, by, TAKE_MS)
    if taken is None:
        return Fate.TAKEN
    fate = fate_of(app, taken, how)
    if fate not in SENT:
        store.give_back(taken.id, by)
        return fate
    headers = headers_of(taken, how)
    where = f"to lane {how.lane}" if how.lane else ""
    detail = f"replay {headers[REPLAYS_HEADER]} {where}".strip()
    try:
        _forgive_crashes(app, taken)
        if fate is Fate.RUN:
            chords.take_back(app, taken)
        # Said before it is sent: it may be dead again before anything could be said after it.
        store.note(taken.id, Attempt(0, "replayed", by, detail))
        send(app, taken.message, headers, queue=queue, delay_s=how.delay_s)
    except Exception as error:
        logger.error("a letter could not be sent: %s", error, extra={"letter": taken.id})
        store.note(taken.id, Attempt(0, "not sent", by, detail))
        store.give_back(taken.id, by)
        return Fate.FAILED
    store.delete(taken.id, by, sent=True)
    signals.send(signals.replayed, app, key=taken.key, letter=taken)
    return fate


def headers_of(letter: Letter, how: How) -> dict[str, Any]:
    """The message's headers for its next try: retries from 0, one replay more."""
    headers = own_headers(letter.message.headers)
    replays = headers.get(REPLAYS_HEADER)
    headers[REPLAYS_HEADER] = (replays if isinstance(replays, int) else 0) + 1
    headers["retries"] = 0
    headers["eta"] = None
    if _is_past(headers.get("expires")):
        headers["expires"] = None  # or it would be dropped on arrival
    if how.lane:
        headers[LANE_HEADER] = how.lane
    return headers


def whoami() -> str:
    """user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"


def _forgive_crashes(app: Any, letter: Letter) -> None:
    """Only where the key is poison: nobody can hold it then, so nobody is robbed of it."""
    task = task_named(app, letter.task)
    record = _record(app, letter)
    if record is None or not isinstance(task, IdempotentTask):
        return
    if record.crashes >= task._terms.max_crashes and not record.revoked:
        binding_of(app).store.free(letter.key)


def _is_anothers(letter: Letter, record: Record) -> bool:
    """Whether its key belongs to a call with other arguments: by the same task id a replay would
    get that one's result, as if this had been done."""
    unchanged = letter.reason is Reason.KEY_CONFLICT and letter.original is None
    return unchanged and record.state is not State.FREE


def _failures(app: Any, birds: list[Letter], wait_s: float) -> int:
    """How many of these have died again, or not come to an end in time."""
    store = letters_of(app)
    gives_up = time.monotonic() + wait_s
    open_, failures = {bird.id: bird for bird in birds}, 0
    while open_ and time.monotonic() < gives_up:
        for bird in list(open_.values()):
            if store.get(bird.id) is not None:
                failures += 1
                del open_[bird.id]
            elif _succeeded(app, bird):
                del open_[bird.id]
        if open_:
            time.sleep(CANARY_POLL_S)
    return failures + len(open_)


def _succeeded(app: Any, letter: Letter) -> bool:
    record = _record(app, letter)
    if record is not None and record.state is State.DONE:
        return True
    try:
        return bool(app.AsyncResult(letter.task_id).state == "SUCCESS")
    except Exception:
        return False  # no result backend: only the record tells


def _record(app: Any, letter: Letter) -> Record | None:
    return binding_of(app).store.get(letter.key) if letter.key else None


def _is_past(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        when = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return False
    return when.replace(tzinfo=when.tzinfo or timezone.utc) < datetime.now(timezone.utc)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
