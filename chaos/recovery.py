"""How long it took until work that a fault had interrupted went on. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.faults import Happening
from chaos.schedule import SERVER, Kind

Line = Mapping[str, Any]

#: Faults that end processes: what ran in them must be started again elsewhere.
DEADLY = (Kind.KILL_TREE, Kind.KILL_PARENT, Kind.KILL_CHILD, Kind.OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from a kind of fault to what ended it, over all faults of the kind."""

    kind: Kind
    faults: int
    hit: int  #: jobs that were running in what was hit and did not end there
    seconds: tuple[float, ...]  #: of those jobs, until they were started again; sorted
    service: tuple[float, ...]  #: of the shop as a whole, until any next job was done; sorted

    def job(self, part: float) -> float | None:
        """The quantile of the jobs' times; ``None`` without any."""
        return quantile(self.seconds, part)


def quantile(values: Sequence[float], part: float) -> float | None:
    """The value that ``part`` of all are not above (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def recoveries(lines: Sequence[Line], happenings: Sequence[Happening]) -> list[Recovery]:
    """One row for each kind of fault that happened."""
    by_key: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_key[str(line["key"])].append(line)
    done = sorted(float(line["monotonic"]) for line in lines if line["what"] == "completed")
    rows: dict[Kind, list[Happening]] = defaultdict(list)
    for happening in happenings:
        rows[happening.fault.kind].append(happening)
    return [_recovery(kind, found, by_key, done) for kind, found in rows.items()]


def _recovery(
    kind: Kind, found: Sequence[Happening], by_key: Mapping[str, list[Line]], done: list[float]
) -> Recovery:
    again = [
        at
        for happening in found
        if kind in DEADLY
        for lines in by_key.values()
        for at in _interrupted(lines, happening)
    ]
    service = [
        at - happening.began
        for happening in found
        if (at := next((at for at in done if at > happening.began), None)) is not None
    ]
    seconds = tuple(sorted(at for at in again if at is not None))
    return Recovery(kind, len(found), len(again), seconds, tuple(sorted(service)))


def _interrupted(lines: Sequence[Line], happening: Happening) -> list[float | None]:
    """For each run that the fault cut short: seconds until the key was started again."""
    out: list[float | None] = []
    at, fault = happening.began, happening.fault
    for line in lines:
        begun = float(line["monotonic"])
        if line["what"] != "start" or begun > at or at - begun > 60:
            continue
        if fault.target != SERVER and line["worker"] != f"worker {fault.target}":
            continue
        pid, fence = line["pid"], line["fence"]
        ended = any(
            other["what"] in ("end", "raised", "completed")
            and other["pid"] == pid
            and other["fence"] == fence
            for other in lines
        )
        if ended or _was_cut_before(lines, line, at):
            continue
        later = [float(other["monotonic"]) for other in lines
                 if other["what"] == "start" and float(other["monotonic"]) > at]  # fmt: skip
        out.append(min(later) - at if later else None)
    return out


def _was_cut_before(lines: Sequence[Line], start: Line, at: float) -> bool:
    """Whether another run had begun before the fault: an earlier one had cut this short."""
    begun = float(start["monotonic"])
    return any(line["what"] == "start" and begun < float(line["monotonic"]) <= at for line in lines)
