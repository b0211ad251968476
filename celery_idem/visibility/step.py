"""Where the keeper meets the worker: the consumer's connection gets it before its first message."""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Collection
from typing import Any

from celery import VERSION, Celery, bootsteps
from celery.worker import state
from kombu.transport import redis as kombu_redis

from celery_idem.binding import settings_of
from celery_idem.request import is_being_stopped
from celery_idem.stores.redis.not_ready import patient
from celery_idem.visibility.keeper import Keeper
from celery_idem.visibility.ledger import Ledger, Times
from celery_idem.visibility.qos import KeptQoS

logger = logging.getLogger("celery_idem.visibility")

#: What the consumer's connection gets where the user set nothing, in seconds. By kombu's defaults
#: one command on a half-open connection waits for ever, and the worker with it.
CONSUMER_DEFAULTS: dict[str, Any] = {
    "socket_timeout": 10.0,  #: the longest that the event loop waits for an answer
    "health_check_interval": 10,  #: kombu >= 5.7 drops a silent BRPOP after twice that
    "socket_keepalive": True,
    #: the kernel gives up a peer that is silent for 15 + 3 × 5 s, in any version of kombu
    "socket_keepalive_options": {
        getattr(socket, name): value
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    },
}
#: The same for the keeper's own connections.
KEEPER_TIMEOUTS = {"socket_timeout": 5.0, "socket_connect_timeout": 2.0}


def install_visibility(app: Celery) -> None:
    """Keep the deliveries of this app's workers, as long as ``idem["visibility_keeper"]`` is true
    and the broker is reached by kombu's own Redis transport. May be called often."""
    app.steps["consumer"].add("celery_idem.visibility.step:VisibilityStep")


#: Before this version of celery, prefork's flush also forgets the tasks that run: nobody acks them.
RUNNING_SURVIVES = (5, 6, 3)
#: States of a blueprint that goes down (celery 5.7 bootsteps.py: CLOSE, TERMINATE).
STOPPING = (0x2, 0x3)


class VisibilityStep(bootsteps.Step):
    """Gives the consumer's channels a :class:`KeptQoS`.

    Only these: producers, other connections of the process and pool children keep kombu's own.
    """

    name = "celery_idem.visibility"

    def include_if(self, parent: Any) -> bool:
        """Whether the setting is on."""
        return settings_of(parent.app).visibility_keeper

    def create(self, parent: Any) -> None:
        """Look at every connection that the consumer opens, before its first channel is used."""
        keeping = _Keeping(parent)
        consumer_opens = parent.connection_for_read
        consumer_opens_writer = parent.connection_for_write
        consumer_mourns = parent.on_connection_error_after_connected

        def connection_for_read(heartbeat: Any = None) -> Any:
            # As celery 5.7 consumer.py does, with a look between making and opening it.
            connection = parent.app.connection_for_read(heartbeat=heartbeat)
            if not _bounded(connection):
                return consumer_opens(heartbeat=heartbeat)
            connection = parent.ensure_connected(connection)
            keeping.keep(connection)
            return connection

        def connection_for_write(url: Any = None, heartbeat: Any = None) -> Any:
            # The consumer's own: worker events and heartbeats. It runs in the same event loop,
            # so a silent peer there stops the worker just as well.
            connection = parent.app.connection_for_write(url=url, heartbeat=heartbeat)
            if not _bounded(connection):
                return consumer_opens_writer(url=url, heartbeat=heartbeat)
            return parent.ensure_connected(connection)

        def on_connection_error(error: BaseException) -> None:
            # Before celery closes the channel, which may fail half-way, and before it forgets
            # which requests its pool has.
            keeping.let_go()
            consumer_mourns(error)

        parent.connection_for_read = connection_for_read
        parent.connection_for_write = connection_for_write
        parent.on_connection_error_after_connected = on_connection_error


def _bounded(connection: Any) -> bool:
    """Give a connection that is not open yet the defaults, and patience with a server that refuses
    for now; False: not kombu's Redis transport."""
    if not issubclass(connection.get_transport_cls(), kombu_redis.Transport):
        return False
    for option, value in CONSUMER_DEFAULTS.items():
        connection.transport_options.setdefault(option, value)
    transport = connection.transport
    channel = transport.Channel
    if isinstance(channel, type) and not issubclass(channel, _PatientChannel):
        transport.Channel = type(channel.__name__, (_PatientChannel, channel), {})
    return True


class _PatientChannel:
    """Before a channel class of kombu's: "not now" is a lost connection, not the worker's end."""

    def _connparams(self, *args: Any, **options: Any) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(*args, **options)  # type: ignore[misc]
        return {**params, "connection_class": patient(params["connection_class"])}


class _Keeping:
    """The keepers of one consumer: one for each broker that it met (failover), mostly one."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._times = Times(lease_s=settings_of(consumer.app).lease_s)
        self._keepers: dict[tuple[Any, ...], Keeper] = {}
        self._made: list[KeptQoS] = []

    def keep(self, connection: Any) -> None:
        """Give all channels of this connection, present and future, a kept QoS.

        The consumer may have several: with green threads, remote control has one of its own.
        """
        self._let_go([qos for qos in self._made if qos.stranded])
        transport = connection.transport
        for channel in transport.channels:
            self._equip(channel)
        make = transport.Channel

        def make_kept(*args: Any, **kwargs: Any) -> Any:
            channel = make(*args, **kwargs)
            self._equip(channel)
            return channel

        transport.Channel = make_kept

    def let_go(self) -> None:
        """The connection is lost: give back what its channels hold, but what tasks work on."""
        self._let_go(self._made)

    def _let_go(self, made: list[KeptQoS]) -> None:
        for qos in made:
            qos.let_go()
        self._made = [qos for qos in self._made if qos not in made]

    def _equip(self, channel: Any) -> None:
        if channel.QoS is not kombu_redis.QoS:
            return  # no ack emulation, or somebody else's QoS
        channel.QoS = functools.partial(self._qos_of, self._keeper_of(channel))

    def _qos_of(self, keeper: Keeper, channel: Any) -> KeptQoS:
        qos = KeptQoS(channel, keeper=keeper)
        self._made.append(qos)
        return qos

    def _keeper_of(self, channel: Any) -> Keeper:
        broker = channel.connection.client
        place = (
            type(channel.connection),
            getattr(channel, "master_name", None) or (broker.hostname, broker.port),
            broker.virtual_host,
            channel.global_keyprefix,
            channel.unacked_key,
        )
        keeper = self._keepers.get(place)
        if keeper is None:
            keeper = self._keepers[place] = self._new_keeper(channel, broker)
            keeper.start()
        return keeper

    def _new_keeper(self, channel: Any, broker: Any) -> Keeper:
        ledger = Ledger(
            self._times,
            prefix=settings_of(self._consumer.app).prefix,
            global_keyprefix=channel.global_keyprefix,
            unacked_key=channel.unacked_key,
            unacked_index_key=channel.unacked_index_key,
        )
        declared = channel.connection.state
        own = broker.clone(transport_options={**broker.transport_options, **KEEPER_TIMEOUTS})

        def open_channel() -> Any:
            own.connect()
            fresh = own.channel()
            # which exchanges are topics and which are not, as the consumer declared them
            fresh.connection.state = declared
            return fresh

        return Keeper(ledger, open_channel, self._running, self._stopping)

    def _running(self) -> Collection[str]:
        """Tags that tasks work on and will ack, though their channel is gone."""
        consumer = self._consumer
        if (
            self._stopping()
            or consumer.app.conf.worker_cancel_long_running_tasks_on_connection_loss
        ):
            return ()
        requests = _copy_of(state.active_requests)
        if vars(consumer.pool).get("flush") is None:
            # only prefork drops what waits in the pool; elsewhere it will run, and ack
            requests |= _copy_of(state.reserved_requests)
        elif VERSION[:3] < RUNNING_SURVIVES:
            return ()
        return {request.message.delivery_tag for request in requests}

    def _stopping(self) -> bool:
        return is_being_stopped() or self._consumer.blueprint.state in STOPPING


def _copy_of(requests: Any) -> set[Any]:
    """The members of a set that another thread may change meanwhile."""
    while True:
        try:
            return set(requests)
        except RuntimeError:
            continue
