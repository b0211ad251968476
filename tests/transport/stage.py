"""One broker with everything on it: a server of its own, the app, workers, a ledger.

The same stage for the tests that kill workers and for the benchmarks, whatever the broker.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from tests.support.effects import ENV as EFFECTS_ENV
from tests.support.effects import Effects
from tests.support.rabbitmq import RabbitBroker
from tests.support.servers import RedisServer
from tests.support.workers import Worker

S = TypeVar("S", bound="Stage")

APP = "tests.transport.app"
BROKERS = ("stock", "streams", "rabbitmq")
#: everything in one look: between two, a message may move from one that was to one that will be
LEFT = """
local left = redis.call('ZCARD', 'rs:{celery}:d')
for _, step in ipairs({'f', '0'}) do left = left + redis.call('XLEN', 'rs:{celery}:' .. step) end
return left
"""


class Stage:
    """``broker``: "stock" (kombu's Redis lists), "streams" or "rabbitmq"; use it with ``with``.

    ``idempotent``: the app has the idempotent task too, its store on the same Redis.
    """

    def __init__(
        self,
        broker: str,
        directory: Path,
        *,
        options: dict[str, Any] | None = None,
        conf: dict[str, Any] | None = None,
        idempotent: bool = False,
    ) -> None:
        if broker not in BROKERS:
            raise ValueError(f"broker must be one of {BROKERS}, not {broker!r}")
        self.broker = broker
        self.directory = directory
        self.options = options or {}
        self.idempotent = idempotent
        self.conf = {"task_ignore_result": True, **(conf or {})}
        self.effects = Effects(directory / "effects.jsonl")
        self.server = RedisServer(directory / "redis", durable=False)
        self.rabbit = RabbitBroker() if broker == "rabbitmq" else None

    def __enter__(self: S) -> S:
        self.server.start()
        os.environ[EFFECTS_ENV] = str(self.effects.path)
        os.environ["TEST_BROKER"] = self.url
        os.environ["TEST_OPTIONS"] = json.dumps(self.options)
        os.environ["TEST_CONF"] = json.dumps(self.conf)
        os.environ.pop("TEST_STORE", None)
        if self.idempotent:  # elsewhere nothing of ours is installed beside the transport
            os.environ["TEST_STORE"] = self.server.url(2)
        sys.modules.pop(APP, None)
        self.module: ModuleType = importlib.import_module(APP)
        self.client = self.server.client()
        self._depth: Any = None
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._depth is not None:
            self._depth.connection.client.close()
        self.module.app.close()
        sys.modules.pop(APP, None)
        self.client.close()
        self.server.stop()
        if self.rabbit is not None:
            self.rabbit.close()

    @property
    def url(self) -> str:
        """The broker's URL."""
        if self.rabbit is not None:
            return self.rabbit.url
        url = self.server.url()
        return url.replace("redis", "redis-streams", 1) if self.broker == "streams" else url

    def worker(self, *queues: str) -> Worker:
        """A worker of two processes, not started yet."""
        place = self.directory / "workers"
        return Worker(f"{APP}:app", place, concurrency=2, loglevel="WARNING", queues=queues)

    def left(self, *, delayed: bool = True) -> int:
        """Messages that the broker still knows of (RabbitMQ: those that no worker has)."""
        if self.broker == "stock":
            # restored messages are in the list before they are no longer in the hash
            return int(self.client.hlen("unacked")) + int(self.client.llen("celery"))
        if self.broker == "rabbitmq":
            return self._rabbit_depth()
        left = int(self.client.eval(LEFT, 0))
        return left if delayed else left - int(self.client.zcard("rs:{celery}:d"))

    def _rabbit_depth(self) -> int:
        if self._depth is None:
            connection = self.module.app.connection_for_write()
            connection.connect()
            self._depth = connection.channel()
        return int(self._depth.queue_declare("celery", passive=True).message_count)

    def send(self, task: str, count: int, **options: Any) -> float:
        """Publish so many tasks, and return the seconds that it took."""
        call = getattr(self.module, task)
        begun = time.perf_counter()
        with self.module.app.producer_pool.acquire(block=True) as producer:
            for number in range(count):
                arguments = () if task == "noop" else (number,)
                call.apply_async(arguments, producer=producer, **options)
        return time.perf_counter() - begun
