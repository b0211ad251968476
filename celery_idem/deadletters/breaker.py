"""The worker's side of a flood of letters: a queue is not consumed for a while, then it is again.

A worker that serves lanes pauses the lane. Any other cancels its consumer of the queue, by
Celery's own means. What was fetched before still runs; what waits in the broker stays there.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery.worker.control import control_command, inspect_command

from celery_idem.core.errors import ConfigError
from celery_idem.core.settings import number
from celery_idem.lanes.control import number_or_text

logger = logging.getLogger("celery_idem.deadletters")


@dataclass(frozen=True, slots=True)
class Pause:
    """One queue that this worker does not consume now."""

    queue: str
    lane: str  #: empty where the worker serves no lanes
    kind: str  #: the task that floods
    until_s: float  #: since 1970

    @property
    def why(self) -> str:
        """As a person reads it."""
        until = datetime.fromtimestamp(self.until_s).strftime("%H:%M:%S")
        return f"flood of {self.kind}, until {until}"


class Breaker:
    """Of one worker, as ``consumer.idem_breaker``; it outlives lost connections."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._pauses: dict[str, Pause] = {}

    def open(self, kind: str, queue: str, pause_s: float) -> list[Pause]:
        """Consume the queue no more for ``pause_s`` seconds. Returns what is paused by this call:
        nothing where the queue is another worker's, or paused already."""
        return [
            pause
            for name in self._consumed(queue)
            if (pause := self._pause(name, kind, pause_s)) is not None
        ]

    def end(self, queue: str = "") -> list[str]:
        """Serve the queue again, or every paused one. Returns their names."""
        ended = [it for it in list(self._pauses.values()) if queue in ("", it.queue, it.lane)]
        for pause in ended:
            self._resume(pause)
        return [it.queue for it in ended]

    def pauses(self) -> list[Pause]:
        """What is paused now; a lane that an operator has resumed is not."""
        return [it for it in self._pauses.values() if self._is_ours(it)]

    def _pause(self, queue: str, kind: str, pause_s: float) -> Pause | None:
        if queue in self._pauses:
            return None
        lanes = self._lanes
        lane = lanes.lane_of_queue(queue) if lanes is not None else ""
        pause = Pause(queue, lane, kind, time.time() + pause_s)
        if lanes is None:
            self._consumer.call_soon(self._consumer.cancel_task_queue, queue)
        elif lane in lanes.line.paused:
            return None  # by an operator, who decides when it is over
        else:
            lanes.line.pause(lane, pause.why)
            lanes.changed()
        self._pauses[queue] = pause
        self._consumer.timer.call_after(
            pause_s, lambda: self._consumer.call_soon(self._time_is_over, pause)
        )
        logger.error(
            "%s %r is paused for %.0f s: %s floods the dead letters. "
            "To serve it before: celery dlq floods --end %s",
            "lane" if lane else "queue", lane or queue, pause_s, kind, queue,
        )  # fmt: skip
        return pause

    def _time_is_over(self, pause: Pause) -> None:
        if self._pauses.get(pause.queue) is pause:
            self._resume(pause)

    def _resume(self, pause: Pause) -> None:
        ours = self._is_ours(pause)
        self._pauses.pop(pause.queue, None)
        if not ours:
            return
        if pause.lane:
            self._lanes.line.resume(pause.lane)
            self._lanes.changed()
        else:
            self._consumer.call_soon(self._consumer.add_task_queue, pause.queue)
        logger.warning("%r is served again, after a flood of %s", pause.queue, pause.kind)

    def _is_ours(self, pause: Pause) -> bool:
        """Whether nobody has resumed the lane, or paused it for another reason, meanwhile."""
        return not pause.lane or self._lanes.line.paused.get(pause.lane) == pause.why

    def _consumed(self, queue: str) -> list[str]:
        """The consumed queues that a letter means, which knows its routing key."""
        consumed = self._consumer.app.amqp.queues.consume_from
        return [name for name, it in consumed.items() if queue in (name, it.routing_key)]

    @property
    def _lanes(self) -> Any:
        return getattr(self._consumer, "idem_lanes", None)


@control_command(
    args=[("kind", str), ("queue", str), ("pause_s", number_or_text)],
    signature="<task> <queue> <seconds>",
)
def flood_pause(state: Any, kind: str = "", queue: str = "", pause_s: Any = None) -> dict[str, str]:
    """Stop consuming a queue for so many seconds, as a flood of a task's dead letters does."""
    breaker: Breaker | None = getattr(state.consumer, "idem_breaker", None)
    if breaker is None:
        return {"error": "this worker keeps no dead letters"}
    if not kind or not queue or pause_s is None:
        return {"error": "which? flood_pause <task> <queue> <seconds>"}
    try:
        number("the seconds of a pause", pause_s, least=0)
    except ConfigError as error:
        return {"error": str(error)}
    paused = breaker.open(kind, queue, float(pause_s))
    if not paused:
        return {"ok": f"nothing to pause: {queue!r} is paused already, or not consumed here"}
    return {"ok": f"{', '.join(it.queue for it in paused)}: paused for {pause_s:g} s"}


@control_command(args=[("queue", str)], signature="[queue]")
def flood_end(state: Any, queue: str = "") -> dict[str, Any]:
    """Serve again what a flood has paused: one queue, or all."""
    breaker: Breaker | None = getattr(state.consumer, "idem_breaker", None)
    if breaker is None:
        return {"error": "this worker keeps no dead letters", "ended": []}
    ended = breaker.end(queue)
    what = f"{queue!r} was not paused by a flood" if queue else "nothing was paused by a flood"
    return {"ok": f"served again: {', '.join(ended)}" if ended else what, "ended": ended}


@inspect_command()
def floods(state: Any) -> list[dict[str, Any]]:
    """The queues that a flood of dead letters has paused here."""
    breaker: Breaker | None = getattr(state.consumer, "idem_breaker", None)
    now_s = time.time()
    return [
        {"queue": it.queue, "lane": it.lane, "kind": it.kind, "left_s": round(it.until_s - now_s)}
        for it in (breaker.pauses() if breaker is not None else ())
    ]
