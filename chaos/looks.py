"""Where the messages are: for stock Redis lists, what was gone when a worker died (C15)."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import redis

from chaos.load import Job
from chaos.schedule import Kind
from chaos.stage import QUEUES, Stage

#: What can take a message that was popped and not recorded with it: the popping process dies or
#: hangs, or the answer that carries it does not arrive.
TAKES_POPPED = (
    Kind.KILL_TREE, Kind.KILL_PARENT, Kind.FREEZE_TREE, Kind.FREEZE_PARENT, Kind.CUT,
    Kind.DROPPED_ACKS, Kind.DROPPED_ANSWERS, Kind.SERVER_KILL, Kind.SERVER_RESTART,
    Kind.SERVER_FREEZE, Kind.DISK_FULL, Kind.DISK_FULL_REFUSES, Kind.DEPLOY,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """The task ids that the broker knows at one moment (monotonic seconds)."""

    at: float
    ids: frozenset[str]


@dataclass(slots=True)
class Watcher:
    """Looks at a stock Redis broker again and again; nothing on the other brokers."""

    stage: Stage
    looks: list[Look] = field(default_factory=list)

    def look(self) -> None:
        """Note what is in the lists and in ``unacked``; nothing when Redis is away."""
        if not self.stage.leg.loses_popped or self.stage.redis is None:
            return
        with contextlib.suppress(redis.RedisError, OSError), self._client() as client:
            pipe = client.pipeline()
            for queue in QUEUES:
                pipe.lrange(queue, 0, -1)
            pipe.hvals("unacked")
            *lists, unacked = pipe.execute()
            ids = {_id(text) for queue in lists for text in queue}
            ids |= {_id(json.dumps(json.loads(text)[0]).encode()) for text in unacked}
            self.looks.append(Look(time.monotonic(), frozenset(ids)))

    def left(self) -> int | None:
        """Messages that the broker holds; ``None`` where that is not asked."""
        if not self.stage.leg.loses_popped or not self.looks:
            return None
        return len(self.looks[-1].ids)

    def _client(self) -> redis.Redis:
        assert self.stage.redis is not None
        return redis.Redis(*self.stage.redis.address, socket_timeout=1, socket_connect_timeout=1)


def vanished(
    jobs: Mapping[str, Job],
    missing: Iterable[str],
    looks: Sequence[Look],
    taking: Sequence[tuple[float, float]],
    started: frozenset[str],
) -> frozenset[str]:
    """Those of the missing jobs that were popped and lost below any plugin's reach.

    That is said only where all of this was seen: its body never started; the broker held it in
    no list and in no record at the end; and its last sight and its first absence lie around one of
    the ``taking`` faults (began, ended). Anything else that is missing is ours.
    """
    lost = set()
    for key in missing:
        ids = set(jobs[key].task_ids)
        if not ids or key in started:
            continue
        seen = [look.at for look in looks if look.ids & ids]
        last = max([jobs[key].sent, *seen])
        after = [look.at for look in looks if look.at > last]
        if after and any(began <= min(after) and ended >= last for began, ended in taking):
            lost.add(key)
    return frozenset(lost)


def _id(text: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(text)["headers"]["id"])
    return ""
