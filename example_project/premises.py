"""What the demo runs on: a server, a gateway, and workers that are replaced when they die."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from example_project import stockroom
from example_project.books import Books
from example_project.embedded import start_server
from example_project.family import Family, Process
from example_project.figures import Reader

LANES = "critical,normal,low"
#: Processes of each worker.
CHILDREN = 2
READY_DEADLINE_S = 150.0


@dataclass(slots=True)
class Premises:
    """All that runs: started by :meth:`open`, ended by its family."""

    folder: Path
    family: Family
    workers: dict[str, Process] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    scheme: str = "redis://"  #: Celery's own transport, or ``redis-streams://``
    #: further settings of the shop, see ``example_project/shop/settings.py``
    settings: dict[str, str] = field(default_factory=dict)
    started: int = 0

    @property
    def books(self) -> Path:
        return self.folder / "books.sqlite3"

    @property
    def gateway(self) -> Path:
        return self.folder / "gateway.sqlite3"

    def open(self, workers: int, database: str = "", fresh: bool = True) -> None:
        """Server, gateway, database and workers, in this order. ``database``: a URL; default:
        SQLite in the folder. ``fresh``: it must hold no orders. Also sets this process's
        environment, which the shop's settings read.
        """
        Books(self.books).create()
        address = self._start_gateway()
        self.env.update(
            SHOP_BROKER=self.scheme + start_server(self.family, self.folder / "redis"),
            SHOP_BOOKS=str(self.books),
            SHOP_GATEWAY=address,
            SHOP_MAIL=address,
            DATABASE_URL=database or f"sqlite:///{self.folder / 'shop.sqlite3'}",
            **self.settings,
        )
        os.environ.update(self.env)
        stockroom.prepare(fresh)
        for _ in range(workers):
            self.hire()

    def hire(self) -> None:
        """Start one more worker."""
        self.started += 1
        name = f"worker-{self.started}"
        self.workers[name] = self.family.start(
            [
                sys.executable, "-m", "celery", "-A", "example_project.watched_shop", "worker",
                "-Q", LANES, "-c", str(CHILDREN), "-n", f"{name}@shop", "-l", "INFO",
                "--without-mingle", "--without-gossip",
            ],
            self.folder / f"{name}.log",
            # a killed worker can't tidy up its temporary files
            env={**self.env, "SHOP_WORKER": name, "TMPDIR": str(self.folder)},
        )  # fmt: skip

    def _start_gateway(self) -> str:
        process = self.family.start(
            [sys.executable, "-m", "example_project.gateway", str(self.gateway)],
            self.folder / "gateway.log", answers=True,
        )  # fmt: skip
        assert process.stdout is not None
        return process.stdout.readline().decode().strip()

    def replace_the_dead(self) -> None:
        """What systemd or Kubernetes does: a worker that has ended is started anew."""
        for name, process in list(self.workers.items()):
            if process.poll() is not None:
                self.family.kill(process)
                del self.workers[name]
                self.hire()

    def wait_ready(self, reader: Reader) -> None:
        """Wait until all workers take messages. Raises ``RuntimeError`` with a worker's log."""
        gives_up = time.monotonic() + READY_DEADLINE_S
        while not self.workers.keys() <= reader.ready():
            dead = [name for name, worker in self.workers.items() if worker.poll() is not None]
            if dead or time.monotonic() > gives_up:
                log = self.folder / f"{(dead or list(self.workers))[0]}.log"
                raise RuntimeError(f"a worker did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)

    def pids(self) -> dict[str, int]:
        """Worker → pid of its main process."""
        return {name: process.pid for name, process in list(self.workers.items())}
