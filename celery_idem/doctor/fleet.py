"""The workers that are there: what they consume, by which settings, and what their clocks say."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_idem.doctor.clock import COMMAND
from celery_idem.doctor.finding import NotChecked
from celery_idem.options import DEFAULT_VISIBILITY_TIMEOUT_S

#: Seconds to wait for workers that may be there, and the longest for those that are.
PATIENCE_S = 2.0
LONGEST_S = 10.0


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a worker's clock is ahead of this machine's, and how far off that may be."""

    ahead_s: float
    error_s: float


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker that answered."""

    name: str
    queues: frozenset[str]
    ours: bool  #: whether it knows a task of this project
    visibility_timeout_s: float
    clock: Clock | None  #: None: it has no such command


@dataclass(frozen=True, slots=True)
class Fleet:
    """All workers that answered, of this project and of others on the same broker."""

    workers: tuple[Worker, ...] = field(default=())

    @property
    def ours(self) -> list[Worker]:
        """Those of this project. Raises :class:`NotChecked` where there is none."""
        found = [worker for worker in self.workers if worker.ours]
        if not found:
            raise NotChecked("no worker of this project answered: start them, then check again")
        return found


def ask_fleet(app: Any, patience_s: float) -> Fleet:
    """Ask every worker on the broker, by four broadcasts; wait ``patience_s`` seconds for them."""
    stats: Mapping[str, Any] = app.control.inspect(timeout=patience_s).stats() or {}
    if not stats:
        return Fleet()
    # who is there is known now: no need to wait for more answers than that
    inspect = app.control.inspect(timeout=LONGEST_S, limit=len(stats))
    queues: Mapping[str, Any] = inspect.active_queues() or {}
    tasks: Mapping[str, Any] = inspect.registered() or {}
    clocks = _ask_clocks(app, patience_s, len(stats))
    own = {name for name in app.tasks if not name.startswith("celery.")}
    return Fleet(
        tuple(
            Worker(
                name=name,
                queues=frozenset(queue["name"] for queue in queues.get(name) or ()),
                # "shop.pay [rate_limit=…]"
                ours=any(it.split(" ")[0] in own for it in tasks.get(name) or ()),
                visibility_timeout_s=_visibility_timeout_s(stats[name]),
                clock=clocks.get(name),
            )
            for name in sorted(stats)
        )
    )


def _visibility_timeout_s(stats: Mapping[str, Any]) -> float:
    options = (stats.get("broker") or {}).get("transport_options") or {}
    return float(options.get("visibility_timeout", DEFAULT_VISIBILITY_TIMEOUT_S))


def _ask_clocks(app: Any, patience_s: float, workers: int) -> dict[str, Clock]:
    """Each answer stands between the asking and its arrival: the middle is off by half of that."""
    found: dict[str, Clock] = {}
    asked_s = time.time()

    def heard(answer: Mapping[str, Any]) -> None:
        half_s = (time.time() - asked_s) / 2
        for name, told in answer.items():
            if isinstance(told, Mapping) and "time_s" in told:
                found[name] = Clock(float(told["time_s"]) - (asked_s + half_s), half_s)

    app.control.broadcast(COMMAND, reply=True, timeout=patience_s, limit=workers, callback=heard)
    return found
