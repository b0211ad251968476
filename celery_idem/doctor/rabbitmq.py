"""What RabbitMQ says of itself: its version, and after how long it closes a slow consumer.

Over AMQP it tells its version and nothing else. ``consumer_timeout`` is told by ``rabbitmqctl``,
where the broker runs on this machine and this user may call it; timeouts of single queues
(RabbitMQ >= 3.12) by the management API, which does not know the broker's own. Where neither can
be asked, the broker's default for its version is taken, and said to be that.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from packaging.version import InvalidVersion, Version

from celery_idem.core.url import without_password
from celery_idem.doctor.finding import NotChecked

#: The default since 3.8.17; 3.8.15 had half of it, those before had no timeout. Seconds.
DEFAULT_TIMEOUT_S = 1800.0
_HISTORY = ((Version("3.8.17"), DEFAULT_TIMEOUT_S), (Version("3.8.15"), 900.0))
#: Queues have timeouts of their own since this version.
QUEUE_TIMEOUTS_SINCE = Version("3.12")
#: Seconds to wait for ``rabbitmqctl`` (an Erlang machine has to start) and the management API.
PATIENCE_S = 20.0
API_PATIENCE_S = 5.0

_LOCAL = ("localhost", "127.0.0.1", "::1")
_ASK = (
    "{application:get_env(rabbit, consumer_timeout), "
    "[P || {listener,_,_,_,_,P,_} <- rabbit_networking:active_listeners()]}."
)


@dataclass(frozen=True, slots=True)
class RabbitFacts:
    """``timeout_s``: None where the broker never closes a consumer."""

    version: str
    timeout_s: float | None
    source: str  #: who said so
    queue_timeouts_s: Mapping[str, float] = field(default_factory=dict)

    def of_queue(self, queue: str) -> float | None:
        """The timeout of this queue's consumers, in seconds."""
        return self.queue_timeouts_s.get(queue, self.timeout_s)


def ask_rabbitmq(connection: Any, api: str | None) -> RabbitFacts:
    """Ask the broker at the other end of an open connection.

    Raises :class:`NotChecked` where it is no RabbitMQ, or the API that was given does not answer.
    """
    properties = connection.connection.server_properties
    if "rabbitmq" not in str(properties.get("product", "")).lower():
        raise NotChecked(f"the AMQP broker is {properties.get('product', 'unknown')}, no RabbitMQ")
    version = str(properties.get("version", "0"))
    queues = _queue_timeouts(api, connection.virtual_host, version) if api else {}
    asked = _ask_rabbitmqctl(connection)
    if asked is not None:
        return RabbitFacts(version, asked[0], "rabbitmqctl", queues)
    return RabbitFacts(version, _default_s(version), _ASSUMED.format(version=version), queues)


_ASSUMED = (
    "assumed: the default of RabbitMQ {version}, because rabbitmqctl can't be asked here; "
    "on the broker's machine: rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'"
)


def _default_s(version: str) -> float | None:
    number = _version(version)
    return next((seconds for since, seconds in _HISTORY if number >= since), None)


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("4")


def _ask_rabbitmqctl(connection: Any) -> tuple[float | None] | None:
    """The timeout in a tuple; None when it can't be asked, or another broker answers."""
    binary = shutil.which("rabbitmqctl")
    if binary is None or connection.hostname not in _LOCAL:
        return None
    try:
        done = subprocess.run(
            [binary, "-q", "-t", str(int(PATIENCE_S)), "eval", _ASK],
            capture_output=True, text=True, timeout=PATIENCE_S + 5,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return parse_rabbitmqctl(done.stdout, int(connection.port or 5672))


def parse_rabbitmqctl(text: str, port: int) -> tuple[float | None] | None:
    """Read ``{{ok,1800000},[25672,5672]}``.

    >>> parse_rabbitmqctl("{{ok,1800000},[25672,5672]}", 5672)
    (1800.0,)
    >>> parse_rabbitmqctl("{{ok,undefined},[5672]}", 5672)  # switched off
    (None,)
    >>> parse_rabbitmqctl("{{ok,1800000},[5673]}", 5672)  # another broker
    """
    told, _, ports = text.strip().partition("},[")
    if str(port) not in re.findall(r"\d+", ports):
        return None
    milliseconds = re.search(r"\{ok,(\d+)", told)
    if milliseconds is None or int(milliseconds.group(1)) == 0:
        return (None,)
    return (int(milliseconds.group(1)) / 1000,)


def _queue_timeouts(api: str, vhost: str, version: str) -> dict[str, float]:
    if _version(version) < QUEUE_TIMEOUTS_SINCE:
        return {}
    columns = "name,arguments,effective_policy_definition"
    path = f"/api/queues/{quote(vhost or '/', safe='')}?columns={columns}"
    return parse_queues(_get(api, path))


def parse_queues(queues: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Queue → its own timeout in seconds; the argument counts more than the policy.

    >>> parse_queues([{"name": "a", "arguments": {"x-consumer-timeout": 5000}}, {"name": "b"}])
    {'a': 5.0}
    """
    found = {}
    for queue in queues:
        by_argument = (queue.get("arguments") or {}).get("x-consumer-timeout")
        by_policy = (queue.get("effective_policy_definition") or {}).get("consumer-timeout")
        milliseconds = by_argument or by_policy
        if milliseconds:
            found[str(queue["name"])] = int(milliseconds) / 1000
    return found


def _get(api: str, path: str) -> Any:
    parts = urlsplit(api)
    where = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(urlunsplit((parts.scheme, where, path, "", "")))
    user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    login = b64encode(f"{user}:{password}".encode()).decode()
    request.add_header("Authorization", f"Basic {login}")
    try:
        with urllib.request.urlopen(request, timeout=API_PATIENCE_S) as answer:
            return json.load(answer)
    except (URLError, OSError, ValueError) as error:
        shown = without_password(api).rpartition("@")[2]
        raise NotChecked(f"the management API at {shown} does not answer: {error}") from error
