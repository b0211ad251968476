"""How the lanes are doing, for ``celery idem lanes``: queues asked once, workers asked once."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from celery_idem.core.errors import IdemError
from celery_idem.core.order import Lane
from celery_idem.core.settings import Settings
from celery_idem.lanes.routing import lanes_of, sent_s

#: AMQP's code of a queue that is not there, which kombu's other transports say as well.
_NOT_FOUND = "404"


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue, as its broker tells it."""

    depth: int | None  #: messages that wait in it; None: there is no such queue
    oldest_s: float | None = None  #: age of the oldest of them; None: empty, or it can't say
    #: Taken by workers and not acked, and for how long the first of them; None: it can't say.
    held: int | None = None
    longest_held_s: float | None = None
    delayed: int = 0  #: kept in the broker until they are due


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane, over all workers that answered."""

    name: str
    queue: str
    weight: float  #: in the settings
    weights: Mapping[str, float]  #: worker → the weight that it goes by now
    reserve: int
    depth: int | None  #: messages in its queue; None: there is no such queue
    oldest_s: float | None  #: age of the oldest of them; None: empty, or the broker can't say
    held: int | None  #: taken by workers and not acked; None: the broker can't say
    longest_held_s: float | None  #: for how long the first of them has been
    delayed: int  #: not due yet, in the broker or in workers
    share: float | None  #: of what was served in the last minute; None: nothing was
    #: Its weight among all lanes, as the workers go by it now: nothing where it is paused.
    ideal: float
    served_last_minute: int
    workers: int
    slots: int  #: processes of these workers
    running: int
    paused_on: tuple[str, ...]
    run_time_s: float | None  #: of a job of the last minute, on average
    paused_for: tuple[str, ...] = ()  #: why, where the pause has a reason

    @property
    def note(self) -> str:
        """What a person should know, or nothing."""
        if not self.workers:
            return "no worker consumes it"
        notes = [self._paused(), self._reweighed()]
        if self.depth is None:
            notes.append("its queue does not exist yet")
        return "; ".join(note for note in notes if note)

    def _paused(self) -> str:
        if not self.paused_on:
            return ""
        paused = f"paused on {len(self.paused_on)} of {self.workers}"
        return f"{paused}: {'; '.join(self.paused_for)}" if self.paused_for else paused

    def _reweighed(self) -> str:
        """Where workers go by another weight than the one in the settings."""
        used = set(self.weights.values())
        if used <= {self.weight}:
            return ""
        if len(used) == 1:
            return f"{self.weight:g} in the settings"
        which = ", ".join(f"{it:g} on {name}" for name, it in sorted(self.weights.items()))
        return f"{which}; {self.weight:g} in the settings"


@dataclass(frozen=True, slots=True)
class Status:
    """All lanes, and the workers that serve them."""

    lanes: tuple[LaneStatus, ...]
    order: str
    charge: str
    workers: tuple[str, ...]

    def to_json(self) -> str:
        """The same as JSON, with each lane's note."""
        data: dict[str, Any] = asdict(self)
        for lane, plain in zip(self.lanes, data["lanes"], strict=True):
            plain["note"] = lane.note
        return json.dumps(data, indent=2)


def look(app: Any, settings: Settings, *, timeout_s: float = 1.0) -> Status:
    """Ask the broker for depths and ages, and the workers for what they do.

    Costs one broadcast, one question per queue, and on Redis one look at the end of each list;
    nothing is taken or changed. Workers that do not answer in ``timeout_s`` are not counted.
    """
    reports: dict[str, Any] = app.control.inspect(timeout=timeout_s)._request("lanes") or {}
    reports = {name: report for name, report in reports.items() if report and "lanes" in report}
    lanes = lanes_of(settings)
    with app.connection_for_read() as connection:
        queues = {lane.name: queue_state(connection, lane.queue) for lane in lanes}
    ideals = _ideals(lanes, reports)
    by_seconds = settings.charge == "seconds"
    served = _totals(reports, "seconds_last_minute" if by_seconds else "started_last_minute")
    return Status(
        lanes=tuple(
            _lane(lane, lanes, queues[lane.name], reports, served, ideals) for lane in lanes
        ),
        order=settings.lane_order,
        charge=settings.charge,
        workers=tuple(sorted(reports)),
    )


def _lane(
    lane: Lane,
    lanes: Sequence[Lane],
    queue: QueueState,
    reports: Mapping[str, Any],
    served: Mapping[str, float],
    ideals: Mapping[str, float],
) -> LaneStatus:
    mine = [(name, it) for name, it in reports.items() if lane.name in it["lanes"]]
    of_mine = [it["lanes"][lane.name] for _, it in mine]
    whole = sum(served.get(other.name, 0.0) for other in lanes)
    started = sum(it["started_last_minute"] for it in of_mine)
    seconds = sum(it["seconds_last_minute"] for it in of_mine)
    return LaneStatus(
        name=lane.name,
        queue=lane.queue,
        weight=lane.weight,
        weights={name: it["lanes"][lane.name]["weight"] for name, it in mine},
        reserve=lane.reserve,
        depth=queue.depth,
        oldest_s=queue.oldest_s,
        held=queue.held,
        longest_held_s=queue.longest_held_s,
        delayed=queue.delayed + sum(it["delayed"] for it in of_mine),
        share=served.get(lane.name, 0.0) / whole if whole else None,
        ideal=ideals[lane.name],
        served_last_minute=started,
        workers=len(mine),
        slots=sum(it["slots"] for _, it in mine),
        running=sum(it["running"] for it in of_mine),
        paused_on=tuple(sorted(name for name, it in mine if it["lanes"][lane.name]["paused"])),
        run_time_s=seconds / started if started and seconds else None,
        # a worker of an earlier release does not say why
        paused_for=tuple(sorted({why for it in of_mine if (why := it.get("paused_for"))})),
    )


def _totals(reports: Mapping[str, Any], field: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for report in reports.values():
        for name, lane in report["lanes"].items():
            totals[name] = totals.get(name, 0.0) + lane[field]
    return totals


def _ideals(lanes: Sequence[Lane], reports: Mapping[str, Any]) -> dict[str, float]:
    """Each lane's weight among all, as the workers that serve it go by it, the larger of them
    counting more; a lane that none of them serves counts by the settings."""
    weights = {}
    for lane in lanes:
        mine = [it for it in reports.values() if lane.name in it["lanes"]]
        slots = sum(it["slots"] for it in mine)
        used = sum(_weight(it["lanes"][lane.name]) * it["slots"] for it in mine)
        weights[lane.name] = used / slots if slots else lane.weight
    whole = sum(weights.values())
    return {name: weight / whole if whole else 0.0 for name, weight in weights.items()}


def _weight(told: Mapping[str, Any]) -> float:
    return 0.0 if told["paused"] else float(told["weight"])


def queue_state(connection: Any, queue: str) -> QueueState:
    """What the broker says. Asking AMQP for a missing queue costs the channel.

    Raises :class:`IdemError` where the broker refuses to say it.
    """
    try:
        channel = connection.channel()
        try:
            if hasattr(channel, "state_of"):  # redis-streams: it knows it all
                told: QueueState = channel.state_of(queue)
                return told
            depth = int(channel.queue_declare(queue, passive=True).message_count)
            if not depth or connection.transport.driver_type != "redis":
                return QueueState(depth)
            sent = [at for at in _sending_times(channel, queue) if at is not None]
            return QueueState(depth, max(0.0, time.time() - min(sent)) if sent else None)
        finally:
            channel.close()
    except connection.channel_errors as error:
        if str(getattr(error, "reply_code", "")) != _NOT_FOUND:
            raise IdemError(f"the broker tells nothing of queue {queue!r}: {error}") from error
    # on Redis an empty queue is no key, so a missing one is an empty one
    return QueueState(0 if connection.transport.driver_type == "redis" else None)


def _sending_times(channel: Any, queue: str) -> Iterator[float | None]:
    """Of the oldest message of each priority, where its producer stamped it."""
    for step in channel.priority_steps:
        key = f"{channel.global_keyprefix}{channel._q_for_pri(queue, step)}"
        raw = channel.client.execute_command("LINDEX", key, -1)
        if raw:
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                yield sent_s(json.loads(raw).get("headers"))
