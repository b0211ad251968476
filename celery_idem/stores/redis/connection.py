"""A redis-py client from a URL as Celery users write them: TCP, TLS, Unix socket, Sentinel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.sentinel import Sentinel

from celery_idem.core.errors import ConfigError
from celery_idem.core.url import scheme_of, why_unreadable, without_password
from celery_idem.stores.redis import tls

#: Seconds after which a silent server counts as gone (half-open connections).
SOCKET_TIMEOUT_S = 5.0
#: Seconds that opening a connection may take.
CONNECT_TIMEOUT_S = 5.0
DEFAULT_SENTINEL_PORT = 26379

_SCHEMES = ("redis", "rediss", "unix", "redis+socket", "rediss+socket", "sentinel")


def is_redis_url(url: str | None) -> bool:
    """Whether a broker, backend or store URL names a Redis server that this module can reach."""
    return bool(url) and scheme_of(str(url)) in _SCHEMES


def client_from_url(url: str, **options: Any) -> redis.Redis:
    """A client for the URL; nothing is connected before the first command.

    ``options`` are redis-py's, plus those of Celery's transports: ``master_name`` and
    ``sentinel_kwargs`` for Sentinel, ``virtual_host`` in a socket URL's query, ``ssl_cert_reqs``
    by Celery's names (``CERT_NONE``) or redis-py's (``none``). Replies are bytes.

    Raises :class:`ConfigError` for a scheme that is not Redis, Sentinel without a master name, or
    an unknown ``ssl_cert_reqs``.
    """
    scheme = scheme_of(url)
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"store {without_password(url)!r} is not a Redis URL; allowed are "
            + ", ".join(f"{s}://" for s in _SCHEMES)
        )
    try:
        return _client(url, scheme, options)
    except ConfigError:
        raise
    except ValueError as error:  # a port that is no number, an option in the query that is none
        raise ConfigError(
            f"store {without_password(url)!r} can't be read: {why_unreadable(url, error)}"
        ) from error


def _client(url: str, scheme: str, options: dict[str, Any]) -> redis.Redis:
    options = {
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        **{k: v for k, v in options.items() if v is not None},
        "decode_responses": False,
    }
    if scheme == "sentinel":
        return _sentinel_client(url, options)
    url = url.split(";")[0]  # further ones are for Celery's failover of the broker
    options.pop("master_name", None)
    options.pop("sentinel_kwargs", None)
    if scheme.endswith("+socket") or scheme == "unix":
        options.pop("socket_keepalive")
        options = {name: value for name, value in options.items() if not name.startswith("ssl")}
        return redis.Redis.from_url(_socket_url(url), **options)
    return redis.Redis.from_url(tls.plain_query(url), **tls.for_url(url, options))


def _socket_url(url: str) -> str:
    """``redis+socket:///path?virtual_host=3`` (kombu's form) as redis-py's ``unix:///path?db=3``."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    db = query.get("virtual_host", query.get("db", "0")).strip("/") or "0"
    login = parts.netloc.rpartition("@")[0]
    return f"unix://{login + '@' if login else ''}{parts.path}?db={db}"


def _sentinel_client(url: str, options: dict[str, Any]) -> redis.Redis:
    master = options.pop("master_name", None)
    if not master:
        raise ConfigError(
            f"store {without_password(url)!r} names Sentinels but no master: put "
            '"master_name": "…" into broker_transport_options'
        )
    sentinel_kwargs: Mapping[str, Any] = options.pop("sentinel_kwargs", None) or {}
    hosts = [urlsplit(part if "//" in part else f"sentinel://{part}") for part in url.split(";")]
    first = hosts[0]
    if first.password:
        options.setdefault("password", unquote(first.password))
    if first.username:
        options.setdefault("username", unquote(first.username))
    db = next((h.path.strip("/") for h in hosts if h.path.strip("/")), "0")
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        [(h.hostname or "127.0.0.1", h.port or DEFAULT_SENTINEL_PORT) for h in hosts],
        sentinel_kwargs={"socket_timeout": SOCKET_TIMEOUT_S, **sentinel_kwargs},
        **options,
    )
    client: redis.Redis = sentinel.master_for(  # type: ignore[no-untyped-call]
        master, db=int(db)
    )
    return client
