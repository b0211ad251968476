"""What each kind of fault does at its beginning and at its end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
import redis

from chaos.schedule import SERVER, Fault, Kind
from chaos.stage import Stage
from tests.support.sentinel import CAREFUL
from tests.support.waiting import DeadlineMissed
from tests.support.workers import Worker

logger = logging.getLogger("chaos")

STARTING = "not done: the worker was just starting"
NEEDS_LINUX = "not done: the size of another process's files can be limited on Linux only"
#: Seconds that an old release has for what it is doing, before it is killed.
GRACEFUL_S = 60.0


@dataclass(frozen=True, slots=True)
class Happening:
    """A fault as it was: on the clock of the ledger (monotonic seconds)."""

    fault: Fault
    began: float
    ended: float
    remark: str = ""  #: why it could not be done here, or what came of it


@dataclass(slots=True)
class Leaving:
    """An old release that ends in order."""

    worker: Worker
    until: float


@dataclass(slots=True)
class Director:
    """Begins and ends faults; call from the main thread, which owns all processes."""

    stage: Stage
    happenings: list[Happening] = field(default_factory=list)
    ended_alone: list[str] = field(default_factory=list)  #: workers that ended without our doing
    _open: dict[Fault, tuple[float, str]] = field(default_factory=dict)
    _leaving: list[Leaving] = field(default_factory=list)
    _kept: dict[Fault, Any] = field(default_factory=dict)

    def begin(self, fault: Fault) -> None:
        """Do it. What can't be done here is remarked, not raised."""
        act = BEGINNINGS[fault.kind]
        began = time.monotonic()
        remark = ""
        try:
            remark = act(self, fault) or ""
        except (ProcessLookupError, IndexError, psutil.NoSuchProcess, redis.RedisError) as error:
            remark = f"not done: its process was gone ({type(error).__name__})"
        logger.info("%s %s", fault, remark)
        self._open[fault] = (began, remark)

    def end(self, fault: Fault) -> None:
        """Undo it, or start again what was killed."""
        began, remark = self._open.pop(fault)
        act = ENDINGS.get(fault.kind)
        if act is not None:
            remark = act(self, fault) or remark
        self.happenings.append(Happening(fault, began, time.monotonic(), remark))

    def tend(self) -> None:
        """Start again what ended by itself, as any service manager does; reap old releases."""
        away = {f.target for f in self._open if f.kind in (Kind.KILL_TREE, Kind.KILL_PARENT)}
        for slot, worker in enumerate(self.stage.workers):
            if slot not in away and worker.returncode is not None:
                self.ended_alone.append(f"{worker.hostname} ended with {worker.returncode}")
                logger.warning("%s", self.ended_alone[-1])
                worker.close()
                worker.start()
        server = self.stage.redis
        if (
            server is not None
            and not server.running
            and SERVER not in {f.target for f in self._open}
        ):
            logger.warning("Redis had ended itself after its disk was full; started again")
            server.start()
        for leaving in self._leaving.copy():
            if leaving.worker.returncode is not None or time.monotonic() > leaving.until:
                leaving.worker.close()
                self._leaving.remove(leaving)

    def finish(self) -> None:
        """End what is still open, and a deploy that has reached a part of the workers."""
        for fault in list(self._open):
            self.end(fault)
        if any(self.stage.releases):
            for slot, release in enumerate(self.stage.releases):
                if release == 0:
                    self.retire(self.replace(slot))

    def replace(self, slot: int) -> Worker:
        """Start the next release in this slot; the old worker, which is returned, goes on."""
        old = self.stage.workers[slot]
        self.stage.releases[slot] += 1
        self.stage.workers[slot] = self.stage.new_worker(slot).start()
        return old

    def retire(self, old: Worker) -> None:
        """Ask an old release to end in order, and kill it when it takes too long."""
        if old.returncode is None:
            old.term()
        self._leaving.append(Leaving(old, time.monotonic() + GRACEFUL_S))


# -- workers


def _worker(self: Director, fault: Fault) -> Worker:
    return self.stage.workers[fault.target]


def kill_tree(self: Director, fault: Fault) -> None:
    _worker(self, fault).kill_tree()


def kill_parent(self: Director, fault: Fault) -> None:
    _worker(self, fault).kill_parent()


def start_again(self: Director, fault: Fault) -> str | None:
    worker = _worker(self, fault)
    orphans = len(worker.members())
    worker.close()
    worker.start()
    return f"{orphans} orphans were still there" if orphans else None


def kill_child(self: Director, fault: Fault) -> str | None:
    if is_starting(_worker(self, fault)):
        return STARTING
    _worker(self, fault).kill_child()
    return None


def is_starting(worker: Worker) -> bool:
    """Celery ends a worker one of whose first children dies before it is up."""
    return "ready." not in worker.log_text()


def kill_largest(self: Director, fault: Fault) -> str | None:
    if is_starting(_worker(self, fault)):
        return STARTING
    children = [psutil.Process(pid) for pid in _worker(self, fault).children()]
    largest = sorted(children, key=lambda p: int(p.memory_info().rss))[-1]
    os.kill(largest.pid, signal.SIGKILL)
    return None


def freeze_tree(self: Director, fault: Fault) -> None:
    with contextlib.suppress(DeadlineMissed):
        _worker(self, fault).stop_tree()


def thaw_tree(self: Director, fault: Fault) -> None:
    _worker(self, fault).cont_tree()


def freeze_parent(self: Director, fault: Fault) -> None:
    with contextlib.suppress(DeadlineMissed):
        _worker(self, fault).stop_parent()


def skew(self: Director, fault: Fault) -> str | None:
    clock = self.stage.clocks[fault.target]
    if clock is None:
        return "not done: no C compiler to build the clock preload"
    clock.set(fault.amount)
    return f"by {fault.amount:+.0f} s"


def unskew(self: Director, fault: Fault) -> None:
    clock = self.stage.clocks[fault.target]
    if clock is not None:
        clock.set(0.0)


def start_release(self: Director, fault: Fault) -> str:
    """The new release comes up beside the old one."""
    self._kept[fault] = self.replace(fault.target)
    return f"release {self.stage.releases[fault.target]}"


def end_old_release(self: Director, fault: Fault) -> None:
    self.retire(self._kept.pop(fault))


# -- its network


def cut(self: Director, fault: Fault) -> None:
    for proxy in self.stage.proxies[fault.target]:
        proxy.cut()


def slow(self: Director, fault: Fault) -> str:
    for proxy in self.stage.proxies[fault.target]:
        proxy.set(latency_s=fault.amount)
    return f"{fault.amount * 1000:.0f} ms each way"


def drop_acks(self: Director, fault: Fault) -> None:
    for proxy in self.stage.proxies[fault.target]:
        proxy.set(blackhole="up")


def drop_answers(self: Director, fault: Fault) -> None:
    for proxy in self.stage.proxies[fault.target]:
        proxy.set(blackhole="down")


def heal(self: Director, fault: Fault) -> None:
    for proxy in self.stage.proxies[fault.target]:
        proxy.heal()


def reset_and_heal(self: Director, fault: Fault) -> None:
    for proxy in self.stage.proxies[fault.target]:
        proxy.reset_all()
        proxy.heal()


# -- servers


def kill_server(self: Director, fault: Fault) -> None:
    assert self.stage.redis is not None
    self.stage.redis.kill()


def stop_server(self: Director, fault: Fault) -> None:
    assert self.stage.redis is not None
    self.stage.redis.stop()


def start_server(self: Director, fault: Fault) -> None:
    assert self.stage.redis is not None
    if self.stage.redis.running:
        self.stage.redis.stop()
    self.stage.redis.start()


def freeze_server(self: Director, fault: Fault) -> None:
    assert self.stage.redis is not None
    self.stage.redis.pause()


def thaw_server(self: Director, fault: Fault) -> None:
    assert self.stage.redis is not None
    self.stage.redis.cont()


def fill_disk(self: Director, fault: Fault) -> str | None:
    if sys.platform != "linux":
        return NEEDS_LINUX
    self.stage.limit_aof()
    return None


def fill_disk_softly(self: Director, fault: Fault) -> str | None:
    assert self.stage.redis is not None
    if sys.platform != "linux":
        return NEEDS_LINUX
    with self.stage.redis.client() as client:
        client.config_set("appendfsync", "everysec")
    self.stage.limit_aof()
    return None


def make_room(self: Director, fault: Fault) -> str:
    server = self.stage.redis
    assert server is not None
    if sys.platform != "linux":
        return NEEDS_LINUX
    if not server.running:
        server.start()
        return "Redis ended itself, and was started again"
    self.stage.unlimit_aof()
    return "Redis lived on"


def make_room_softly(self: Director, fault: Fault) -> str:
    remark = make_room(self, fault)
    server = self.stage.redis
    assert server is not None
    with contextlib.suppress(redis.RedisError), server.client() as client:
        client.config_set("appendfsync", "always")
    return remark


def fail_over(self: Director, fault: Fault) -> str:
    """The master is killed, or only hangs, so that it comes back and still believes."""
    trio = self.stage.trio
    assert trio is not None
    self._kept[fault] = master = trio.master()
    if fault.amount < 0.5:
        master.kill()
        return "master killed"
    master.pause()
    return "master frozen"


def bring_old_master_back(self: Director, fault: Fault) -> str:
    trio = self.stage.trio
    assert trio is not None
    old = self._kept.pop(fault)
    began = time.monotonic()
    new = trio.wait_new_master(old)
    waited = time.monotonic() - began
    if old.running:
        old.cont()
        what = "master frozen"
    else:
        old.extra = [*CAREFUL, "--replicaof", "127.0.0.1", str(new.port)]
        old.start()
        what = "master killed"
    trio.wait_in_sync(old)
    late = f", {waited:.1f} s later than planned" if waited > 1 else ""
    return f"{what}, replica promoted{late}"


Act = Callable[[Director, Fault], "str | None"]

BEGINNINGS: dict[Kind, Act] = {
    Kind.KILL_TREE: kill_tree,
    Kind.KILL_PARENT: kill_parent,
    Kind.KILL_CHILD: kill_child,
    Kind.OUT_OF_MEMORY: kill_largest,
    Kind.FREEZE_TREE: freeze_tree,
    Kind.FREEZE_PARENT: freeze_parent,
    Kind.CUT: cut,
    Kind.SLOW: slow,
    Kind.DROPPED_ACKS: drop_acks,
    Kind.DROPPED_ANSWERS: drop_answers,
    Kind.CLOCK: skew,
    Kind.DEPLOY: start_release,
    Kind.SERVER_KILL: kill_server,
    Kind.SERVER_RESTART: stop_server,
    Kind.SERVER_FREEZE: freeze_server,
    Kind.DISK_FULL: fill_disk,
    Kind.DISK_FULL_REFUSES: fill_disk_softly,
    Kind.FAILOVER: fail_over,
}

ENDINGS: dict[Kind, Act] = {
    Kind.KILL_TREE: start_again,
    Kind.KILL_PARENT: start_again,
    Kind.FREEZE_TREE: thaw_tree,
    Kind.FREEZE_PARENT: thaw_tree,
    Kind.CUT: heal,
    Kind.SLOW: heal,
    Kind.DROPPED_ACKS: reset_and_heal,
    Kind.DROPPED_ANSWERS: reset_and_heal,
    Kind.CLOCK: unskew,
    Kind.DEPLOY: end_old_release,
    Kind.SERVER_KILL: start_server,
    Kind.SERVER_RESTART: start_server,
    Kind.SERVER_FREEZE: thaw_server,
    Kind.DISK_FULL: make_room,
    Kind.DISK_FULL_REFUSES: make_room_softly,
    Kind.FAILOVER: bring_old_master_back,
}
