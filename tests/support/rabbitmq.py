"""A corner of the shared RabbitMQ for one test: its own vhost, or else its own queue names."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import uuid
from typing import Any
from urllib.parse import quote, urlsplit

from kombu import Connection

from tests.support.services import RABBITMQ_URL


class RabbitBroker:
    """``url`` for Celery, ``queue(name)`` for a queue's name in it.

    Where ``rabbitmqctl`` may be used, the test gets a vhost of its own and plain queue names
    (``private`` is True). Elsewhere it shares the URL's vhost: names get a prefix, and the
    queues asked for by ``queue`` are deleted at the end.
    """

    def __init__(self) -> None:
        self.name = f"idem-{uuid.uuid4().hex[:12]}"
        self.private = self._add_vhost()
        self._queues: list[str] = []

    @property
    def url(self) -> str:
        if not self.private:
            return RABBITMQ_URL
        parts = urlsplit(RABBITMQ_URL)
        return f"{parts.scheme}://{parts.netloc}/{quote(self.name, safe='')}"

    def queue(self, name: str) -> str:
        """The name to use for a queue; the queue is deleted when the test ends."""
        full = name if self.private else f"{self.name}.{name}"
        self._queues.append(full)
        return full

    def connection(self) -> Connection:
        """A new kombu connection, to be used with ``with``."""
        return Connection(self.url)

    def depth(self, name: str) -> int:
        """Ready messages in a queue (0 when it does not exist)."""
        with self.connection() as link:
            with contextlib.suppress(*link.channel_errors):
                return int(_channel(link).queue_declare(name, passive=True).message_count)
            return 0

    def close(self) -> None:
        if self.private:
            _ctl("delete_vhost", self.name)
            return
        with self.connection() as link:
            for name in self._queues:
                with contextlib.suppress(*link.channel_errors):
                    _channel(link).queue_delete(name)

    def __enter__(self) -> RabbitBroker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _add_vhost(self) -> bool:
        user = urlsplit(RABBITMQ_URL).username or "guest"
        if not _ctl("add_vhost", self.name):
            return False
        if _ctl("set_permissions", "-p", self.name, user, ".*", ".*", ".*"):
            return True
        _ctl("delete_vhost", self.name)
        return False


def _channel(link: Connection) -> Any:
    return link.channel()  # typed by kombu as the least that every transport has


def _ctl(*arguments: str) -> bool:
    binary = shutil.which("rabbitmqctl")
    if binary is None:
        return False
    return subprocess.run([binary, "-q", *arguments], capture_output=True).returncode == 0
