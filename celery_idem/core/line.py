"""The waiting line in front of a worker's processes: who may start now, by order and reserve.

Pure: it holds what waits, counts what runs and picks the next; starting it is the caller's work.
The same object serves a real worker and the simulation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Generic, TypeVar

from celery_idem.core.errors import ConfigError
from celery_idem.core.order import STRAY_WEIGHT, DeadlineOrder, Lane, LaneOrder, reweighed

T = TypeVar("T")

NONE: frozenset[str] = frozenset()


def kept_free(lanes: Sequence[Lane], running: Mapping[str, int], lane: str, slots: int) -> int:
    """Processes that ``lane`` must leave alone: the unused reserves of the lanes ranked above it.

    A reserve that its own lane occupies is used, and kept no longer. Reserves never take the
    last process from the lanes below: else a worker with as many reserved as it has processes
    would never run them.

    >>> lanes = [Lane("critical", reserve=1), Lane("low")]
    >>> kept_free(lanes, {}, "low", slots=4), kept_free(lanes, {"critical": 1}, "low", slots=4)
    (1, 0)
    """
    kept = 0
    for above in lanes:
        if above.name == lane:
            break
        kept += max(0, above.reserve - running.get(above.name, 0))
    return min(kept, max(slots - 1, 0))


def may_start(lanes: Sequence[Lane], running: Mapping[str, int], lane: str, slots: int) -> bool:
    """Whether one more job of ``lane`` may start in a pool of ``slots`` processes."""
    free = slots - sum(running.values())
    return free > kept_free(lanes, running, lane, slots)


class Line(Generic[T]):
    """What waits and what runs in one worker, lane by lane.

    ``fetched`` says when the order is charged. Where the consumer chooses what to fetch (Redis),
    the fetch was the choice, and the line only passes on what came. Where the broker pushes
    (RabbitMQ), the line is the choice: every start is charged.

    ``ranked`` names all lanes that may come, the first rank in front; by default those given.
    """

    def __init__(
        self,
        lanes: Iterable[Lane],
        order: LaneOrder,
        *,
        slots: int,
        fetched: bool = False,
        ranked: Sequence[str] | None = None,
    ) -> None:
        self.lanes: tuple[Lane, ...] = tuple(lanes)
        names = [lane.name for lane in self.lanes] if ranked is None else ranked
        self._rank = {name: rank for rank, name in enumerate(names)}
        self.order = order
        self.version = 0  #: grows whenever what may start could have changed
        self.paused: dict[str, str] = {}  #: lane → why, as a person reads it; may be empty
        self.running: dict[str, int] = {lane.name: 0 for lane in self.lanes}
        self.started: dict[str, int] = {lane.name: 0 for lane in self.lanes}
        self._fetched = fetched
        self._slots = slots
        self._busy = 0
        self.count = 0  #: of all that waits
        self._reserved = any(lane.reserve for lane in self.lanes)
        self._waiting: dict[str, deque[T]] = {lane.name: deque() for lane in self.lanes}
        self._all = frozenset(self._waiting)

    @property
    def slots(self) -> int:
        """Processes of the pool."""
        return self._slots

    @slots.setter
    def slots(self, slots: int) -> None:
        if slots != self._slots:
            self._slots = slots
            self.version += 1

    @property
    def restricted(self) -> bool:
        """Whether some lane may be kept from a free process: by a reserve or a pause."""
        return self._reserved or bool(self.paused)

    def has_room(self, lane: str) -> bool:
        """Whether one more job of the lane may start now, and the lane is not paused."""
        if self._busy >= self._slots or lane in self.paused:
            return False
        return not self._reserved or may_start(self.lanes, self.running, lane, self._slots)

    # -- what waits

    def add(self, lane: str, item: T) -> None:
        """Put it at the end of its lane's line. An unknown lane is added, see :meth:`admit`."""
        self.admit(lane)
        self._waiting[lane].append(item)
        self.count += 1
        self.version += 1

    def admit(self, lane: Lane | str) -> None:
        """Make sure that the lane is known, at its rank: last where it has none. A name alone gets
        weight 1."""
        name = lane if isinstance(lane, str) else lane.name
        if name in self._waiting:
            return
        if isinstance(lane, str):
            lane = Lane(name, STRAY_WEIGHT, queue=name, deadline_s=self._longest_deadline())
        rank = self._ranked(lane)
        place = sum(self._ranked(other) <= rank for other in self.lanes)
        self.lanes = (*self.lanes[:place], lane, *self.lanes[place:])
        self._reserved = self._reserved or lane.reserve > 0
        for count in (self.running, self.started):
            count.setdefault(name, 0)
        self._waiting[name] = deque()
        self._all = frozenset(self._waiting)
        self.version += 1
        self.order.set_lanes(self.lanes)

    def _ranked(self, lane: Lane) -> float:
        return self._rank.get(lane.name, math.inf)

    def _longest_deadline(self) -> float | None:
        if not isinstance(self.order, DeadlineOrder):
            return None
        return max((lane.deadline_s or 0.0 for lane in self.lanes), default=math.inf)

    def waiting(self, lane: str | None = None) -> int:
        """How many wait, in one lane or in all."""
        if lane is not None:
            return len(self._waiting.get(lane, ()))
        return self.count

    def first(self, lane: str) -> T | None:
        """The longest waiting of a lane."""
        items = self._waiting.get(lane)
        return items[0] if items else None

    def drain(self, lane: str | None = None) -> list[T]:
        """Take out all that waits (of one lane), without charging anybody."""
        lines = [self._waiting[lane]] if lane is not None else list(self._waiting.values())
        items = [item for line in lines for item in line]
        for line in lines:
            line.clear()
        self.count -= len(items)
        self.version += 1
        return items

    # -- who is next

    def next(self, now_s: float) -> tuple[str, T] | None:
        """The next to start, now counted as running; ``None`` when nothing may."""
        if not self.count or self._busy >= self._slots:
            return None
        ready = {name for name, items in self._waiting.items() if items}
        if self.restricted:
            ready = {name for name in ready if self.has_room(name)}
        if not ready:
            return None
        lane = self._choose(ready, now_s)
        self.running[lane] += 1
        self.started[lane] += 1
        self._busy += 1
        self.count -= 1
        self.version += 1
        return lane, self._waiting[lane].popleft()

    def _choose(self, ready: set[str], now_s: float) -> str:
        if self._fetched and len(ready) == 1:
            return next(iter(ready))
        lane = next(name for name in self.order.preference(now_s) if name in ready)
        if not self._fetched:
            self.order.took(lane, [name for name in self._waiting if name not in ready])
        return lane

    def finished(self, lane: str, run_time_s: float) -> None:
        """A process is free again; 0 seconds: it was given back without running."""
        if self.running.get(lane, 0) > 0:
            self.running[lane] -= 1
            self._busy -= 1
        self.version += 1
        self.order.finished(lane, run_time_s)

    def fetchable(self) -> Set[str]:
        """Lanes of which one more message could start at once, were it here."""
        if self._busy >= self._slots:
            return NONE
        if not self.restricted:
            return NONE if self.count else self._all
        open_lanes = {name for name in self._waiting if self.has_room(name)}
        waiting = {name for name, items in self._waiting.items() if items}
        # What waits though its lane has room will take the process. What waits without (paused,
        # or kept from a reserve) is no reason not to fetch for others.
        return NONE if waiting & open_lanes else open_lanes - waiting

    # -- changes at run time

    def reweigh(self, lane: str, weight: float) -> None:
        """Another weight from the next choice on; :class:`ConfigError` for an unknown lane."""
        self.lanes = reweighed(self.lanes, lane, weight)
        self._reserved = any(lane.reserve for lane in self.lanes)
        self.version += 1
        self.order.set_lanes(self.lanes)

    def pause(self, lane: str, why: str = "") -> None:
        """Start nothing more of this lane; what runs goes on. The last reason given is kept."""
        self._known(lane)
        self.paused[lane] = why
        self.version += 1

    def resume(self, lane: str) -> None:
        """Serve it again. It joins at the current round, and does not catch up."""
        self._known(lane)
        self.paused.pop(lane, None)
        self.version += 1

    def _known(self, lane: str) -> None:
        if lane not in self._waiting:
            known = ", ".join(self._waiting)
            raise ConfigError(f"idem: no lane {lane!r} here; known are {known}")
