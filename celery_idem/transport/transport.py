"""The transports: what kombu's ``Connection`` makes of a broker URL."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

import redis
from redis import sentinel

from celery_idem.core.errors import ConfigError
from celery_idem.transport import kombu_base
from celery_idem.transport.channel import Channel
from celery_idem.transport.poller import ANSWER_PATIENCE_S, CalmLoop, Poller


class Transport(kombu_base.Transport):  # type: ignore[misc]
    """``redis-streams://``"""

    Channel = Channel
    driver_type = "redis"
    driver_name = "redis-streams"

    #: The event loop, and what it calls before each poll for this transport.
    _ticks: tuple[Any, set[Any]] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()
        #: Queues bound to a fanout exchange over this connection → exchange and pattern.
        self.fanout_queues: dict[str, tuple[str, str]] = {}

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        before = set(loop.on_tick)
        super().register_with_event_loop(connection, CalmLoop(loop))
        self._ticks = (loop, set(loop.on_tick) - before)
        for channel in self.channels:
            channel.gathers_acks = True
        self._in_event_loop = True
        self.cycle.join_loop(loop)
        loop.call_repeatedly(ANSWER_PATIENCE_S / 2, self.cycle.drop_deaf_connections)

    def create_channel(self, connection: Any) -> Any:
        channel = super().create_channel(connection)
        channel.gathers_acks = getattr(self, "_in_event_loop", False)
        return channel

    def _collect(self, connection: Any) -> None:
        """kombu: the connection was lost. Nothing can be sent over it any more."""
        for channel in list(self.channels):
            channel.is_broken = True
        while self.channels or self._avail_channels:
            # one that fails is gone from the list, and no reason to keep the others
            with contextlib.suppress(*self.connection_errors):
                self.close_connection(connection)
        self.close_connection(connection)

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self.cycle.close_waker()
        if self._ticks is not None:
            loop, ticks = self._ticks
            loop.on_tick -= ticks


class SSLTransport(Transport):
    """``rediss-streams://``; without SSL options the certificate is checked."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        if not isinstance(client.ssl, dict):  # broker_use_ssl=True says no more than the URL
            client.ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
        super().__init__(client, **kwargs)


class SentinelChannel(Channel):
    """A channel whose server is the master that the Sentinels name (``master_name``)."""

    from_transport_options = (
        *Channel.from_transport_options,
        "master_name",
        "min_other_sentinels",
        "sentinel_kwargs",
    )
    connection_class = sentinel.SentinelManagedConnection
    connection_class_ssl = kombu_base.redis.SentinelManagedSSLConnection
    master_name: str | None = None
    min_other_sentinels = 0
    sentinel_kwargs: dict[str, Any] | None = None

    def _get_pool(self, asynchronous: bool = False) -> Any:
        params = self._connparams(asynchronous=asynchronous)
        self.keyprefix_fanout: str = str(self.keyprefix_fanout).format(db=params["db"])
        if not self.master_name:
            raise ConfigError("sentinel-streams:// needs the transport option 'master_name'")
        host, port = params.pop("host"), params.pop("port")
        manager = sentinel.Sentinel(  # type: ignore[no-untyped-call]
            self._sentinels() or [(host, port)],
            min_other_sentinels=self.min_other_sentinels,
            sentinel_kwargs=self.sentinel_kwargs,
            **params,
        )
        login = {k: params[k] for k in ("username", "password") if k in params}
        return manager.master_for(  # type: ignore[no-untyped-call]
            self.master_name, redis.Redis, **login
        ).connection_pool

    def _sentinels(self) -> list[tuple[str, int]]:
        urls = [kombu_base.redis._parse_url(url) for url in self.connection.client.alt or ()]
        return [
            (url.hostname, url.port or self.connection.default_port)
            for url in urls
            if url.scheme in ("sentinel", "sentinel-streams")
        ]


class SentinelTransport(Transport):
    """``sentinel-streams://host:26379;sentinel-streams://host2:26379``"""

    default_port = 26379
    Channel = SentinelChannel
