"""The channel: kombu's Redis channel for fanout and connections, ours for queues."""

from __future__ import annotations

import contextlib
import logging
import os
from bisect import bisect
from typing import Any

import redis
from kombu.transport import redis as kombu_redis

from celery_idem.transport import envelope, scripts
from celery_idem.transport.consuming import Consuming
from celery_idem.transport.errors import Unroutable
from celery_idem.transport.keeper import Flusher, Keeper
from celery_idem.transport.keys import ALL_STEPS, FRONT, Keys
from celery_idem.transport.qos import QoS
from celery_idem.transport.session import Session, Terms

logger = logging.getLogger("celery_idem.transport")

_OPTIONS = (
    "lease_s",
    "block_s",
    "fetch_limit",
    "stream_prefix",
    "requeue_delay_s",
    "requeue_delay_max_s",
    "max_deliveries",
    "delays_in_broker",
    "unroutable",
)


class Channel(Consuming, kombu_redis.Channel):  # type: ignore[misc]
    """Queues as streams with leases. Every option is one of ``broker_transport_options``."""

    QoS = QoS
    from_transport_options = (*kombu_redis.Channel.from_transport_options, *_OPTIONS)

    #: Silence of a worker after which its messages go to others, in seconds.
    lease_s = 30.0
    #: Longest wait of an idle worker before it looks by itself, in seconds.
    block_s = 5.0
    #: Most messages that one fetch takes.
    fetch_limit = 64
    #: What all keys begin with, after ``global_keyprefix``.
    stream_prefix = "rs:"
    #: Pause before a requeued message comes again, doubled with each requeue, and its bound.
    requeue_delay_s = 0.1
    requeue_delay_max_s = 60.0
    #: Deliveries without an ack after which a message is set aside. 0: never. A message that only
    #: sat in the prefetch of a killed worker counts too, so don't set it low.
    max_deliveries = 0
    #: Keep messages with an ETA in the broker until they are due.
    delays_in_broker = True
    #: A task for an exchange that nobody is bound to: "raise", or "drop" as AMQP does.
    unroutable = "raise"

    # a server that vanished must not hang a worker for ever
    socket_timeout = 15.0
    socket_connect_timeout = 5.0
    socket_keepalive = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._session: Session | None = None
        self._keeper: Keeper | None = None
        self._flusher: Flusher | None = None
        self._ttl_ms: dict[str, int] = {}
        self._raw: redis.Redis | None = None
        self._pid = os.getpid()
        self.init_consuming()
        super().__init__(*args, **kwargs)
        self.keys = Keys(f"{self.global_keyprefix}{self.stream_prefix}")
        if not set(map(str, self.priority_steps)) <= set(ALL_STEPS):
            raise ValueError(f"priority_steps must be of 0 to 9, not {self.priority_steps!r}")
        self.steps = (FRONT, *(str(step) for step in self.priority_steps))

    # -- the session

    @property
    def session(self) -> Session:
        """What this channel holds; begun when the first message is wanted."""
        if self._session is None or self._pid != os.getpid():
            terms = Terms(
                float(self.lease_s), float(self.requeue_delay_s), float(self.requeue_delay_max_s)
            )
            self._pid = os.getpid()
            self._session = Session(self.keys, self._get_pool(), terms)
            self._keeper = None
            self._flusher = Flusher(self._session)
        return self._session

    def join(self, queues: list[str]) -> Session:
        """The session, registered for these queues and kept alive."""
        session = self.session
        session.join(self.keys.lane(queue) for queue in queues)
        if self._keeper is None:
            self._keeper = Keeper(session)
            self._keeper.start()
        return session

    def settle(self, tag: str) -> None:
        """Ack: gathered for the next turn of the event loop, else sent at once."""
        session = self._session
        if session is None or not session.ack(tag):
            return
        gathered = self.gathers_acks or not session.flush()
        if gathered and self._flusher is not None:
            self._flusher.notice()
        if self.connection is not None:
            self.connection.cycle.wake()

    def requeue(self, tag: str) -> None:
        if self._session is not None:
            self._session.requeue(tag)

    def give_back(self, tags: list[str]) -> None:
        if self._session is not None:
            self._session.give_back(tags)

    def end_session(self) -> None:
        """Give everything unacked back; or, when the connection was lost, leave it to the keeper.

        Celery lets tasks run on when it connects anew: their acks come through this channel yet.
        """
        session = self._session
        if session is None or session.pid != os.getpid():
            return
        if self._keeper is not None and self.is_broken and not session.lost:
            self._keeper.linger()
            return
        if self._keeper is not None:
            self._keeper.stop()
        self._session = None
        session.end()

    # -- publishing

    @property
    def raw(self) -> redis.Redis:
        """A client that leaves our keys as they are (kombu's would prefix some of them)."""
        if self._raw is None or self._raw.connection_pool is not self.pool:
            self._raw = redis.Redis(connection_pool=self.pool)
        return self._raw

    def step_of(self, message: dict[str, Any]) -> str:
        """The step of a message's priority; as with kombu's Redis, 0 is the most urgent."""
        priority = self._get_message_priority(message, reverse=False)
        return str(self.priority_steps[max(bisect(self.priority_steps, priority) - 1, 0)])

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        batch = kwargs.pop("_publish_batch", None)
        lane, ttl_ms = self.keys.lane(queue), self._ttl_ms.get(queue, 0)
        delay_s = envelope.delay_s_of(message) if self.delays_in_broker else None
        args: list[scripts.Arg] = [self.step_of(message), envelope.encode(message)]
        if delay_s is not None and delay_s > 0:
            keys, script = [lane, self.keys.due, self.keys.wake], scripts.PUT_LATER
            args += [int(delay_s * 1000) + 1, ttl_ms]
        else:
            keys, script = [lane], scripts.PUT
            args += [ttl_ms, "0" if delay_s is None else "1"]
        if batch is not None:
            # a server that restarted has forgotten its scripts, and a batch is not repeated
            batch.add("eval", script.source, len(keys), *keys, *args)
        else:
            script(self.raw, keys, args)

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> Any:
        if exchange and self.unroutable == "raise" and "task" in (message.get("headers") or {}):
            self._require_route(exchange, routing_key)
        return super().basic_publish(message, exchange, routing_key, **kwargs)

    def _require_route(self, exchange: str, routing_key: str) -> None:
        if self.typeof(exchange).type == "fanout" or self._lookup(exchange, routing_key):
            return
        raise Unroutable(
            f"no queue is bound to exchange {exchange!r} with routing key {routing_key!r}: "
            "the task would be lost; declare the queue, or set the transport option "
            "unroutable='drop'"
        )

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        if encoding == "base64" and isinstance(body, str):
            return body, "utf-8"  # text needs no armour
        return super().encode_body(body, encoding)  # type: ignore[no-any-return]

    def decode_body(self, body: Any, encoding: str | None = None) -> Any:
        if encoding == "utf-8" and isinstance(body, str):
            return body.encode()
        return super().decode_body(body, encoding)

    # -- queues

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        super()._new_queue(queue, auto_delete=auto_delete, **kwargs)
        with contextlib.suppress(KeyError, TypeError, ValueError):
            self._ttl_ms[queue] = int(kwargs["arguments"]["x-expires"])
            return
        self._ttl_ms.pop(queue, None)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return int(scripts.SIZE(self.raw, [self.keys.lane(queue)], self.steps)) >= 0

    def _size(self, queue: str) -> int:
        return max(int(scripts.SIZE(self.raw, [self.keys.lane(queue)], self.steps)), 0)

    def _purge(self, queue: str) -> int:
        keys = [self.keys.lane(queue), self.keys.due]
        return int(scripts.PURGE(self.raw, keys, ["ready", *self.steps]))

    def _delete(
        self, queue: str, exchange: str, routing_key: str, pattern: str, *args: Any, **kwargs: Any
    ) -> None:
        self.auto_delete_queues.discard(queue)
        member = self.sep.join([routing_key or "", pattern or "", queue or ""])
        with self.conn_or_acquire(client=kwargs.get("client")) as client:
            client.srem(self.keyprefix_queue % (exchange,), member)
            permanent = getattr(self, "keyprefix_binding_permanent", None)
            if permanent:
                client.srem(permanent % (exchange,), member)
        keys = [self.keys.lane(queue), self.keys.due]
        scripts.PURGE(self.raw, keys, ["all", FRONT, *ALL_STEPS])

    def _maybe_update_queues_expire(self, client: Any, queue: str) -> None:
        """Done by the scripts."""
