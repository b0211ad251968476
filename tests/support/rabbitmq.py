"""A corner of the shared RabbitMQ for one test, and a whole node of one test's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
from kombu import Connection

from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import end_group, spawn
from tests.support.services import RABBITMQ_URL
from tests.support.waiting import wait_until

#: where Debian and Red Hat keep the scripts themselves; those in /usr/sbin change the user
SCRIPTS = Path("/usr/lib/rabbitmq/bin")
#: how long a node may take to start on a busy machine, in seconds
START_S = 120.0
#: how long its helpers may take to notice that it is gone, in seconds
HELPERS_END_S = 10.0


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

    def missing_vhost(self) -> str | None:
        """Why a test that can't share a vhost with others can't run here; None when it can."""
        return None if self.private else "needs a vhost of its own (rabbitmqctl)"

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
        return _depth(self, name)

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


def find_rabbitmq(script: str) -> str | None:
    """Path of ``rabbitmq-server`` or ``rabbitmqctl``: in ``RABBITMQ_SCRIPTS``, the package's, or
    from PATH."""
    folder = Path(os.environ.get("RABBITMQ_SCRIPTS", SCRIPTS))
    return str(folder / script) if (folder / script).exists() else shutil.which(script)


def missing_rabbitmq_node() -> str | None:
    """Why no node of one's own can be started here; None when it can."""
    for needed in (find_rabbitmq("rabbitmq-server"), shutil.which("epmd")):
        if needed is None:
            return "no rabbitmq-server and epmd here (set RABBITMQ_SCRIPTS to their folder)"
    return None


class RabbitNode:
    """A RabbitMQ with a folder, a name, ports and an Erlang port mapper of its own.

    ``settings`` are those of the ``rabbit`` application, as Erlang terms:
    ``{"consumer_timeout": "5000"}``. ``kill`` and ``start`` keep ports and data. Both processes end
    with the test process. Use as a context manager, or end it with ``stop``.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = dict(settings or {})
        self.name = f"idem-{uuid.uuid4().hex[:12]}@localhost"
        self.port = free_port()
        self._mapper_port = free_port()
        self._distribution_port = free_port()
        self.alarmed = False  #: whether an alarm was forced since its start
        self._node: subprocess.Popen[bytes] | None = None
        self._mapper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}//"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as a ``FaultProxy`` wants its target."""
        return LOOPBACK, self.port

    @property
    def log(self) -> Path:
        return self.directory / "node.log"

    def log_text(self) -> str:
        """All that the node has said."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def connection(self) -> Connection:
        """A new kombu connection, to be used with ``with``."""
        return Connection(self.url)

    def depth(self, name: str) -> int:
        """Ready messages in a queue (0 when it does not exist)."""
        return _depth(self, name)

    def messages(self, name: str) -> int:
        """Messages of a queue, those that workers hold and have not acked included."""
        lines = self.ctl("list_queues", "name", "messages", "--no-table-headers").splitlines()
        return sum(int(number) for queue, number in map(str.split, lines) if queue == name)

    # -- its life

    def start(self) -> RabbitNode:
        """Start it and wait until it takes AMQP connections."""
        self.directory.mkdir(parents=True, exist_ok=True)
        terms = ", ".join(f"{{{name}, {term}}}" for name, term in self.settings.items())
        (self.directory / "advanced.config").write_text(f"[{{rabbit, [{terms}]}}].\n")
        (self.directory / "enabled_plugins").write_text("[].\n")
        env = self._env()
        mapper = ["epmd", "-port", str(self._mapper_port), "-address", LOOPBACK]
        if self._mapper is None:
            self._mapper = spawn(mapper, self.directory / "epmd.log", env=env)
            self._wait_for(self._mapper, self._mapper_port)
        server = find_rabbitmq("rabbitmq-server")
        assert server is not None
        self._node = spawn([server], self.log, cwd=self.directory, env=env)
        self._wait_for(self._node, self.port)
        return self

    def kill(self) -> None:
        """SIGKILL: what the node had not written is lost, and so are alarms that were forced."""
        self.alarmed = False
        if self._node is not None:
            # Erlang's helpers have sessions of their own, and end when they miss the node
            helpers = psutil.Process(self._node.pid).children(recursive=True)
            end_group(self._node)
            self._node = None
            for left in psutil.wait_procs(helpers, HELPERS_END_S)[1]:
                left.kill()

    def stop(self) -> None:
        """End the node and its port mapper. May be called often."""
        self.kill()
        if self._mapper is not None:
            end_group(self._mapper)
            self._mapper = None

    def ctl(self, *arguments: str) -> str:
        """``rabbitmqctl`` on this node; its answer."""
        script = find_rabbitmq("rabbitmqctl")
        assert script is not None
        done = subprocess.run(
            [script, "-q", "-n", self.name, *arguments],
            env=self._env(), cwd=self.directory, capture_output=True, text=True, timeout=START_S,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def set_memory_alarm(self, on: bool) -> None:
        """Forced by a watermark that is always, or never, reached; returns when it is."""
        self.ctl("set_vm_memory_high_watermark", "absolute", "1" if on else "64GB")
        self._wait_for_alarms(on)

    def set_disk_alarm(self, on: bool) -> None:
        """The same by the free space that it wants."""
        self.ctl("set_disk_free_limit", "1000000GB" if on else "1MB")
        self._wait_for_alarms(on)

    def __enter__(self) -> RabbitNode:
        return self if self._node is not None else self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    # -- pieces

    def _env(self) -> dict[str, str]:
        own = {
            "HOME": str(self.directory),  # of the cookie
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(self.directory / "none"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.directory / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
            # no shell of the script's in between: the node is the process that was started
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ", "ERL"))}
        return inherited | own

    def _wait_for(self, process: subprocess.Popen[bytes], port: int) -> None:
        def answers() -> bool:
            if process.poll() is not None:
                raise RuntimeError(
                    f"it ended with {process.returncode}:\n{self.log_text()[-3000:]}"
                )
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1):
                return True
            return False

        wait_until(answers, START_S, lambda: f"port {port}:\n{self.log_text()[-3000:]}")

    def _wait_for_alarms(self, on: bool) -> None:
        self.alarmed = on
        wait_until(
            lambda: (self.ctl("eval", "rabbit_alarm:get_alarms().").strip() != "[]") is on,
            what=f"an alarm that is {'on' if on else 'over'}",
        )


def _depth(broker: RabbitBroker | RabbitNode, name: str) -> int:
    with broker.connection() as link:
        with contextlib.suppress(*link.channel_errors):
            return int(_channel(link).queue_declare(name, passive=True).message_count)
        return 0
