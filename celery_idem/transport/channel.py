"""The channel: kombu's Redis channel for fanout and connections, ours for queues."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from bisect import bisect
from typing import Any

from redis.exceptions import ResponseError

from celery_idem.core.errors import ConfigError
from celery_idem.lanes.status import QueueState
from celery_idem.stores.redis.not_ready import patient
from celery_idem.transport import cluster, envelope, kombu_base, scripts
from celery_idem.transport.consuming import Consuming
from celery_idem.transport.errors import Unroutable
from celery_idem.transport.keys import ALL_STEPS, FRONT, Keys
from celery_idem.transport.options import check_options
from celery_idem.transport.qos import QoS

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
    "accept_lists",
)


class Channel(Consuming):
    """Queues as streams with leases. Every option is one of ``broker_transport_options``."""

    QoS = QoS
    from_transport_options = (*kombu_base.Channel.from_transport_options, *_OPTIONS)

    #: What all keys begin with, after ``global_keyprefix``.
    stream_prefix = "rs:"
    #: Keep messages with an ETA in the broker until they are due.
    delays_in_broker = True
    #: A task for an exchange that nobody is bound to: "raise", or "drop" as AMQP does.
    unroutable = "raise"

    # a server that vanished must not hang a worker for ever
    socket_timeout = 15.0
    socket_connect_timeout = 5.0
    socket_keepalive = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._used_at: dict[str, float] = {}
        self.init_consuming()
        super().__init__(*args, **kwargs)
        check_options(self)
        self.keys = Keys(f"{self.global_keyprefix}{self.stream_prefix}")
        self.steps = (FRONT, *(str(step) for step in self.priority_steps))

    # -- connections

    @property
    def _fanout_queues(self) -> dict[str, tuple[str, str]]:
        """kombu keeps these in one dict for the whole process: a queue that is bound to a fanout
        exchange on one broker would be deaf on every other."""
        known: dict[str, tuple[str, str]] = self.connection.fanout_queues
        return known

    def _connparams(self, *args: Any, **options: Any) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(*args, **options)
        return {**params, "connection_class": patient(params["connection_class"])}

    # -- publishing

    def step_of(self, message: dict[str, Any]) -> str:
        """The step of a message's priority; as with kombu's Redis, 0 is the most urgent."""
        priority = self._get_message_priority(message, reverse=False)
        return str(self.priority_steps[max(bisect(self.priority_steps, priority) - 1, 0)])

    def score_of(self, message: dict[str, Any]) -> float:
        """The priority as it was given, for a scored lane: any number, the lowest goes first.

        What is none (also NaN and infinity, which have no place) counts as the default.
        """
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            score = float(message["properties"]["priority"])
            if math.isfinite(score):
                return score
        return float(self.default_priority)

    def reprioritise(self, queue: str, name: str, score: float) -> bool:
        """Change the score of the task with this id while it waits in a scored lane."""
        if not math.isfinite(score):
            raise ConfigError(f"a score must be a finite number, not {score!r}")
        lane = self.keys.lane(queue)
        return bool(scripts.REPRIORITISE(self.raw, [lane], [name, float(score)]))

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        batch = kwargs.pop("_publish_batch", None)
        lane, ttl_ms = self.keys.lane(queue), self._ttl_ms.get(queue, 0)
        delay_s = envelope.delay_s_of(message) if self.delays_in_broker else None
        args: list[scripts.Arg] = [self.step_of(message), envelope.encode(message)]
        if delay_s is not None and delay_s > 0:
            keys, script = [lane, self.keys.due, self.keys.wake], scripts.PUT_LATER
            args += [int(delay_s * 1000) + 1, ttl_ms, self.score_of(message)]
        else:
            keys, script = [lane], scripts.PUT
            args += [ttl_ms, "0" if delay_s is None else "1", self.score_of(message)]
            args.append(str(message["headers"].get("id") or message["properties"]["delivery_tag"]))
        if batch is not None:
            # a server that restarted has forgotten its scripts, and a batch is not repeated
            batch.add("eval", script.source, len(keys), *keys, *args)
            return
        try:
            script(self.raw, keys, args)
        except ResponseError as error:
            raise cluster.explained(error, self.keys.prefix) from error

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

    def encode_body(self, body: Any, encoding: str | None = None) -> Any:
        if encoding == "base64" and isinstance(body, str):
            return body, "utf-8"  # text needs no armour
        return super().encode_body(body, encoding)

    def decode_body(self, body: Any, encoding: str | None = None) -> Any:
        if encoding == "utf-8" and isinstance(body, str):
            return body.encode()
        return super().decode_body(body, encoding)

    # -- queues

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """``Queue(expires=…)`` as ``x-expires``: kombu's Redis channel does it since 5.7 only."""
        return kombu_base.queue_arguments(arguments or {}, **options)

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        super()._new_queue(queue, auto_delete=auto_delete, **kwargs)
        arguments = kwargs.get("arguments") or {}
        self._ttl_ms.pop(queue, None)
        with contextlib.suppress(KeyError, TypeError, ValueError):
            self._ttl_ms[queue] = int(arguments["x-expires"])
        if arguments.get("x-queue-type") == "scored":
            rate = float(arguments.get("x-aging-rate", 0.0))
            if not math.isfinite(rate):
                raise ConfigError(f"x-aging-rate of {queue} must be a finite number, not {rate!r}")
            self.raw.set(f"{self.keys.lane(queue)}:scored", rate)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return int(scripts.SIZE(self.raw, [self.keys.lane(queue)], self.steps)) >= 0

    def _size(self, queue: str) -> int:
        return max(int(scripts.SIZE(self.raw, [self.keys.lane(queue)], self.steps)), 0)

    def state_of(self, queue: str) -> QueueState:
        """Depth, ages, what is held and what is delayed: for ``celery idem lanes`` and metrics."""
        from celery_idem.transport.status import lane

        found = lane(self, queue)
        return QueueState(
            depth=found.ready,
            oldest_s=found.oldest_ready_s,
            held=found.held,
            longest_held_s=found.longest_held_s,
            delayed=found.delayed,
        )

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

    def _used(self, queue: str) -> None:
        """Put off the expiry of a queue that is taken from, at a third of its time."""
        ttl_ms = self._ttl_ms.get(queue, 0)
        if not ttl_ms or time.monotonic() - self._used_at.get(queue, -ttl_ms) < ttl_ms / 3000:
            return
        self._used_at[queue] = time.monotonic()
        scripts.KEEP(self.raw, [self.keys.lane(queue)], [ttl_ms, *self.steps])
