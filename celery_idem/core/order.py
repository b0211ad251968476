"""Which lane is served next: ``weighted``, ``strict`` and ``deadline`` order.

Pure: no clock, no broker. A consumer asks for the order in which to look at the lanes
(:meth:`LaneOrder.preference`) and reports what it really took (:meth:`LaneOrder.took`). Only what
was taken is charged, never what was asked for: a lane that was found empty has had nothing.

The promises of ``weighted``, for a lane of weight ``w`` where the lanes with work weigh ``W``:

* it is served at least once in ``2 × ceil(W / w)`` fetches while it has work, and for 10:5:1 in
  exactly ``ceil(W / w)``: 2, 4 and 16. (No scheduler keeps ``ceil(W / w)`` for all weights: with
  3:2:1 the three lanes would need slots every 2, every 3 and every 6 fetches, which do not fit.)
* over any stretch in which the lanes with work stay the same, it is at most ``n`` fetches (``n``
  lanes) away from its ideal share; measured, at most 1.3.
* what a lane without work does not use goes to the others by weight, and a lane that gets work
  again joins at the current round: it neither catches up nor is made to wait.

Charged in seconds, the same holds with the longest job as the unit instead of one fetch.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from celery_idem.core.errors import ConfigError

#: Weight of a queue that a worker consumes without it being a lane.
STRAY_WEIGHT = 1.0
#: How far one job moves the estimate of a lane's run time.
ESTIMATE_GAIN = 0.2
#: Seconds that a job counts for until the first one has ended.
FIRST_ESTIMATE_S = 1.0
#: Most rounds of fetches that a worker pretends to have done, to start at a phase of its own.
MAX_PHASE = 4096

#: Charges of one lane that wait for their job's end; what was never run would pile up for ever.
MAX_OPEN = 10_000

#: Bounds of what a lane's weight or deadline may be: beyond, sums and shares are no numbers.
LEAST, MOST = 1e-9, 1e9

_LANE_KEYS = ("weight", "queue", "reserve", "deadline")


@dataclass(frozen=True, slots=True)
class Lane:
    """A class of work with its own queue. The order in which lanes are given is their rank."""

    name: str
    weight: float = 1.0  #: share of fetches (or seconds) against the other lanes' weights
    queue: str = ""  #: name of its queue; the lane's own name unless given
    reserve: int = 0  #: processes of every worker that lanes ranked below may not occupy
    deadline_s: float | None = None  #: the lane's promise: a job starts this long after it was sent


def parse_lanes(given: Mapping[str, Any]) -> tuple[Lane, ...]:
    """Read ``{"critical": 10, "low": {"weight": 1, "deadline": 600}}``.

    Raises :class:`ConfigError` for a weight that is not above 0, an unknown key, a reserve that
    is not a whole number, and two lanes on one queue (a queue has one order of its own, so two
    weights can't divide it).

    >>> [lane.name for lane in parse_lanes({"critical": 10, "low": {"queue": "bulk"}})]
    ['critical', 'low']
    """
    lanes = tuple(_parse_lane(name, value) for name, value in given.items())
    owners: dict[str, str] = {}
    for lane in lanes:
        if lane.queue in owners:
            raise ConfigError(
                f"idem: lanes {owners[lane.queue]!r} and {lane.name!r} both use queue "
                f"{lane.queue!r}; one queue is served in one order, give each lane its own"
            )
        owners[lane.queue] = lane.name
    return lanes


def _parse_lane(name: object, value: object) -> Lane:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"idem: a lane's name must be a non-empty text, not {name!r}")
    if not isinstance(value, Mapping):
        value = {"weight": value}
    for key in value:
        if key not in _LANE_KEYS:
            raise ConfigError(
                f"idem: lane {name!r}: unknown key {key!r}; known are {', '.join(_LANE_KEYS)}"
            )
    queue = value.get("queue", name)
    if not isinstance(queue, str) or not queue:
        raise ConfigError(f"idem: lane {name!r}: queue must be a non-empty text, not {queue!r}")
    reserve = value.get("reserve", 0)
    if isinstance(reserve, bool) or not isinstance(reserve, int) or reserve < 0:
        raise ConfigError(
            f"idem: lane {name!r}: reserve must be a whole number of processes, not {reserve!r}"
        )
    deadline = value.get("deadline")
    return Lane(
        name=name,
        weight=check_weight(name, value.get("weight", 1.0)),
        queue=queue,
        reserve=reserve,
        deadline_s=None if deadline is None else _positive(name, "deadline", deadline),
    )


def check_weight(lane: str, weight: object) -> float:
    """The weight as a number above 0; raises :class:`ConfigError` that names the lane."""
    return _positive(lane, "weight", weight)


def _positive(lane: str, what: str, value: object) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not value > 0 or value == math.inf:  # type: ignore[operator]
        hint = "; to stop a lane, pause it or leave its queue out of -Q" if what == "weight" else ""
        raise ConfigError(f"idem: lane {lane!r}: {what} must be above 0, not {value!r}{hint}")
    if not LEAST <= value <= MOST:  # type: ignore[operator]
        raise ConfigError(f"idem: lane {lane!r}: {what} must be from {LEAST:g} to {MOST:g}")
    return float(value)  # type: ignore[arg-type]


class LaneOrder(Protocol):
    """Says which lane is served next. One object per worker, used from one thread."""

    def set_lanes(self, lanes: Iterable[Lane]) -> None:
        """Serve these lanes from now on; what is known of a lane that stays is kept."""

    def preference(self, now_s: float) -> list[str]:
        """All lanes, the one to look at first in front. Asking changes nothing."""

    def took(self, lane: str, empty: Collection[str] = ()) -> None:
        """A message of ``lane`` was taken; those in ``empty`` had none, or may not be served."""

    def finished(self, lane: str, run_time_s: float) -> None:
        """A job taken before has ended (0 seconds: it was given back without running)."""

    def head(self, lane: str, sent_s: float) -> None:
        """The oldest message known of ``lane`` was sent then (same clock as ``now_s``)."""


class StrictOrder:
    """Lanes by rank: the next is looked at only while those before it are empty. It starves."""

    def __init__(self, lanes: Iterable[Lane]) -> None:
        self.set_lanes(lanes)

    def set_lanes(self, lanes: Iterable[Lane]) -> None:
        self._names = [lane.name for lane in lanes]

    def preference(self, now_s: float) -> list[str]:
        return list(self._names)

    def took(self, lane: str, empty: Collection[str] = ()) -> None:
        """Rank alone decides."""

    def finished(self, lane: str, run_time_s: float) -> None:
        """Rank alone decides."""

    def head(self, lane: str, sent_s: float) -> None:
        """Rank alone decides."""


class DeadlineOrder:
    """The lane whose oldest message has the least time left of its lane's promise.

    What is known of the oldest message is a bound: the sending time of the last one taken (a
    queue is first in, first out, so the next one is not older), or the moment at which the lane
    was found empty. A lane may thus be looked at one message early, never late. No lane starves:
    time left only shrinks. When all lanes are late, all are late by the same time.
    """

    def __init__(self, lanes: Iterable[Lane]) -> None:
        self._sent_s: dict[str, float] = {}
        self._now_s = 0.0
        self.set_lanes(lanes)

    def set_lanes(self, lanes: Iterable[Lane]) -> None:
        lanes = list(lanes)
        for lane in lanes:
            if lane.deadline_s is None:
                raise ConfigError(
                    f"idem: lane_order 'deadline' needs a deadline for every lane; "
                    f"lane {lane.name!r} has none: {{'weight': …, 'deadline': seconds}}"
                )
        self._deadline_s = {lane.name: lane.deadline_s or 0.0 for lane in lanes}
        self._sent_s = {name: self._sent_s.get(name, -math.inf) for name in self._deadline_s}

    def preference(self, now_s: float) -> list[str]:
        self._now_s = now_s
        # sent + deadline orders as slack does; a lane never seen (-inf) comes by its promise
        return sorted(self._deadline_s, key=self._due)

    def _due(self, lane: str) -> tuple[float, float]:
        return self._sent_s[lane] + self._deadline_s[lane], self._deadline_s[lane]

    def took(self, lane: str, empty: Collection[str] = ()) -> None:
        for name in empty:
            if name in self._sent_s:
                self._sent_s[name] = max(self._sent_s[name], self._now_s)

    def finished(self, lane: str, run_time_s: float) -> None:
        """Run times do not matter."""

    def head(self, lane: str, sent_s: float) -> None:
        if lane in self._sent_s:
            self._sent_s[lane] = sent_s


class WeightedOrder:
    """Smooth weighted round robin: every lane has a credit, and the highest is served.

    A charge of ``c`` for a lane takes ``c`` from its credit and gives ``c × w / W`` to each lane
    that had work, itself included; so the credits always add up to 0, and the bounds follow: the
    highest is never below 0, so nobody falls more than one charge into debt, so nobody's credit
    exceeds the debts of the others. Where lanes run empty and weights change all the time, a lane
    may be served a little before its turn, because the order had counted with one that turned out
    to be empty: debts then stay below two charges (up to eight lanes, searched for the worst).

    The empty lanes' credit goes back to the others: an absent lane saves up nothing.
    """

    def __init__(
        self,
        lanes: Iterable[Lane],
        *,
        charge: str = "messages",
        rng: random.Random | None = None,
    ) -> None:
        """``rng`` draws the phase to start at; ``None`` starts at the beginning of the round.

        Workers that start in phase serve a light lane all at once and then not for long: with 64
        workers at 10:5:1 the low lane waits up to 961 fetches of the fleet, at random phases 62.
        """
        self._seconds = charge == "seconds"
        self._credit: dict[str, float] = {}
        self._estimate_s: dict[str, float] = {}
        self._open: dict[str, deque[tuple[float, list[str]]]] = {}  # charges not yet corrected
        self.set_lanes(lanes)
        if rng is not None and not self._seconds and self._weight:
            round_length = sum(self._weight.values()) / min(self._weight.values())
            for _ in range(rng.randrange(min(math.ceil(round_length), MAX_PHASE))):
                self.took(self.preference(0.0)[0])

    def set_lanes(self, lanes: Iterable[Lane]) -> None:
        self._weight = {lane.name: lane.weight for lane in lanes}
        whole = sum(self._weight.values()) or 1.0
        self._share = {name: weight / whole for name, weight in self._weight.items()}
        gone = [name for name in self._credit if name not in self._weight]
        freed = sum(self._credit.pop(name) for name in gone)
        for name in gone:
            self._open.pop(name, None)
            self._estimate_s.pop(name, None)
        for name in self._weight:
            self._credit.setdefault(name, 0.0)
        self._inherit(freed)

    def _inherit(self, freed: float) -> None:
        """Credit of lanes that are gone goes to all; a debt to those who have it coming, so that
        nobody's own debt grows."""
        if freed >= 0:
            self._spread(freed, self._weight)
            return
        owed = sum(credit for credit in self._credit.values() if credit > 0)
        for name, credit in self._credit.items():
            if credit > 0:
                self._credit[name] += freed * credit / owed

    def preference(self, now_s: float) -> list[str]:
        # By messages the next charge is known to be 1, so its share counts already (that is the
        # "smooth" of the method); in seconds it is not known before the job has run.
        unit = 0.0 if self._seconds else 1.0
        share, credit = self._share, self._credit
        return sorted(share, key=lambda n: (-(credit[n] + unit * share[n]), -share[n]))

    def took(self, lane: str, empty: Collection[str] = ()) -> None:
        if lane not in self._credit:
            return
        cost = self._expected_s(lane) if self._seconds else 1.0
        if empty:
            busy = [name for name in self._weight if name == lane or name not in empty]
            self._forfeit(lane, empty, busy)
            self._charge(lane, cost, busy)
        else:  # as nearly always under load, so without any list
            busy = list(self._share) if self._seconds else []
            for name, share in self._share.items():
                self._credit[name] += cost * share
            self._credit[lane] -= cost
        if self._seconds:
            self._open.setdefault(lane, deque(maxlen=MAX_OPEN)).append((cost, busy))

    def _forfeit(self, lane: str, empty: Iterable[str], busy: Collection[str]) -> None:
        """What lanes without work had saved goes to the others."""
        saved = 0.0
        for name in empty:
            if name != lane and self._credit.get(name, 0.0) > 0:
                saved += self._credit[name]
                self._credit[name] = 0.0
        if saved:
            self._spread(saved, busy)

    def finished(self, lane: str, run_time_s: float) -> None:
        if not self._seconds or lane not in self._credit:
            return
        # Corrected among those who were charged then: a lane that has come since had no part in it
        charges = self._open.get(lane)
        charged, busy = charges.popleft() if charges else (0.0, [lane])
        busy = [name for name in busy if name in self._weight]
        self._charge(lane, run_time_s - charged, busy)
        if run_time_s > 0:
            known = self._estimate_s.get(lane, run_time_s)
            self._estimate_s[lane] = known + ESTIMATE_GAIN * (run_time_s - known)

    def head(self, lane: str, sent_s: float) -> None:
        """Ages do not matter."""

    def credits(self) -> dict[str, float]:
        """What each lane is owed, in fetches or seconds; below 0: it had more than its share."""
        return dict(self._credit)

    def _expected_s(self, lane: str) -> float:
        known = self._estimate_s
        if lane in known:
            return known[lane]
        return sum(known.values()) / len(known) if known else FIRST_ESTIMATE_S

    def _charge(self, lane: str, cost: float, busy: Collection[str]) -> None:
        self._spread(cost, busy)
        self._credit[lane] -= cost

    def _spread(self, amount: float, among: Iterable[str]) -> None:
        names = list(among)
        whole = sum(self._weight[name] for name in names) or 1.0
        for name in names:
            self._credit[name] += amount * self._weight[name] / whole


def make_order(
    kind: str,
    lanes: Sequence[Lane],
    *,
    charge: str = "messages",
    rng: random.Random | None = None,
) -> LaneOrder:
    """The order of this name (``weighted``, ``strict``, ``deadline``), or :class:`ConfigError`."""
    if kind == "weighted":
        return WeightedOrder(lanes, charge=charge, rng=rng)
    if kind == "strict":
        return StrictOrder(lanes)
    if kind == "deadline":
        return DeadlineOrder(lanes)
    raise ConfigError(f"idem: lane_order must be weighted, strict or deadline, not {kind!r}")


def reweighed(lanes: Iterable[Lane], name: str, weight: float) -> tuple[Lane, ...]:
    """The same lanes, one with another weight; raises :class:`ConfigError` for an unknown one."""
    lanes = tuple(lanes)
    if name not in {lane.name for lane in lanes}:
        known = ", ".join(lane.name for lane in lanes)
        raise ConfigError(f"idem: no lane {name!r} here; known are {known}")
    checked = check_weight(name, weight)
    return tuple(replace(lane, weight=checked) if lane.name == name else lane for lane in lanes)
