"""kombu's poller of channels, for ours: their turns, their answers, and acks of other threads."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
from queue import Empty
from typing import Any

from celery_idem.transport import kombu_base

logger = logging.getLogger("celery_idem.transport")

#: Seconds by which an answer of the server may be late before its connection counts as dead.
ANSWER_PATIENCE_S = 10.0
#: Longest wait in seconds while something is held and Celery keeps acks until the wait is over.
ACK_PATIENCE_S = 0.05


class Poller(kombu_base.Poller):  # type: ignore[misc]
    """kombu's poller, with our channels' turns instead of its BRPOP."""

    def __init__(self) -> None:
        super().__init__()
        self._waker: tuple[socket.socket, socket.socket] | None = None
        self._loop_thread = 0
        self._in_loop = False

    # -- waking up

    def join_loop(self, loop: Any) -> None:
        """An event loop polls from now on."""
        self._in_loop = True
        self._remove_reader = loop.remove
        loop.add_reader(self._waking_end(), self._woken)
        if not hasattr(loop, "_waker"):  # kombu before 5.7
            self._wake_for_other_threads(loop)
            self._on_connection_disconnect = self._forget_connection

    def _forget_connection(self, connection: Any) -> None:
        """kombu before 5.7 stops polling in the loop with the first connection that is dropped."""
        for key in list(self._chan_to_sock):
            channel, client, kind = key
            if client.connection is not connection:
                continue
            del self._chan_to_sock[key]
            for fileno, known in list(self._fd_to_chan.items()):
                if known == (channel, kind):
                    self._remove_reader(fileno)
                    del self._fd_to_chan[fileno]

    def _wake_for_other_threads(self, loop: Any) -> None:
        """Before kombu 5.7 a call for the loop's thread waits until something else wakes it.

        So the threads pool's acks waited for the next heartbeat, with every process's slot full.
        """
        call_soon = type(loop).call_soon

        def call_and_wake(*args: Any, **kwargs: Any) -> Any:
            called = call_soon(loop, *args, **kwargs)
            self.wake()
            return called

        loop.call_soon = call_and_wake

    def wake(self) -> None:
        """From another thread: a message was acked, so another one may be wanted."""
        if self._waker is not None and threading.get_ident() != self._loop_thread:
            with contextlib.suppress(OSError):  # full: it is awake
                self._waker[1].send(b"!")

    def _waking_end(self) -> int:
        if self._waker is None:
            self._waker = socket.socketpair()
            for end in self._waker:
                end.setblocking(False)
        return self._waker[0].fileno()

    def _woken(self) -> None:
        if self._waker is not None:
            with contextlib.suppress(OSError):
                self._waker[0].recv(4096)

    def close_waker(self) -> None:
        waker, self._waker = self._waker, None
        for end in waker or ():
            end.close()

    # -- polling

    def on_poll_start(self) -> None:
        self._loop_thread = threading.get_ident()
        for channel in list(self._channels):
            if channel.lanes:
                channel.turn()
            if channel.active_fanout_queues:
                self._register_LISTEN(channel)

    def on_readable(self, fileno: int) -> Any:
        channel_and_type = self._fd_to_chan.get(fileno)
        if channel_and_type is None:
            return None
        channel, kind = channel_and_type
        if kind == "BRPOP" and not channel._in_poll:
            # nothing is expected: the server closed the connection
            channel.client.connection.disconnect()
            return None
        return channel.handlers[kind]()

    def get(self, callback: Any, timeout: float | None = None) -> None:
        """One message (or none), without an event loop."""
        self._in_protected_read = True
        try:
            # kombu 5.7: bindings of expiring queues end with those who use them
            getattr(self, "maybe_refresh_binding_expiry", _nothing)()
            for channel in list(self._channels):
                if channel._inbox:
                    channel._deliver_next()
                    return
            self.on_poll_start()
            waking_end = self._register_waker()
            cut_short = self._holds_acks_back() and (timeout is None or timeout > ACK_PATIENCE_S)
            for fileno, event in self.poller.poll(ACK_PATIENCE_S if cut_short else timeout) or ():
                if fileno == waking_end:
                    self._woken()
                    continue
                if self.handle_event(fileno, event):
                    return
            self.drop_deaf_connections()
            if cut_short:
                raise TimeoutError
            raise Empty
        finally:
            self._in_protected_read = False
            while self.after_read:
                self.after_read.pop()()

    def _holds_acks_back(self) -> bool:
        """Whether acks of what is held are made known only after this wait.

        Before Celery 5.7 the greenlet pools' acks are kept for the next turn of its loop.
        """
        consumer: Any = sys.modules.get("celery.worker.consumer.consumer")
        if consumer is None or hasattr(consumer.Consumer, "call_soon_ack"):
            return False
        return any(channel.holds_something for channel in self._channels)

    def _register_waker(self) -> int:
        known = self._waker is not None
        waking_end = self._waking_end()
        if not known:
            self.poller.register(waking_end, self.eventflags)
        return waking_end

    def maybe_check_brpop_health(self) -> None:
        """kombu's look at its BRPOP, which knows nothing of ``block_s``: it would drop a healthy
        connection in the middle of a wait."""

    def drop_deaf_connections(self) -> None:
        """A half-open connection never becomes readable: drop it when its answer is overdue.

        Not where nobody reads: Celery 5.7 turns the timers from another thread while it waits for
        its pool to end.
        """
        if self._in_loop and threading.get_ident() != self._loop_thread:
            return
        for channel in list(self._channels):
            connection, sent_at = channel._in_poll, getattr(channel, "_brpop_sent_at", None)
            if not connection or sent_at is None:
                continue
            waited_s = time.monotonic() - sent_at
            if waited_s > channel.block_s + ANSWER_PATIENCE_S:
                logger.warning("no answer from Redis for %.0f s: connecting anew", waited_s)
                connection.disconnect()


def _nothing() -> None:
    """What kombu before 5.7 does about the bindings of expiring queues."""


class CalmLoop:
    """An event loop that is not told at every tick what it knows (a tenth of a worker's time)."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def add_reader(self, fd: int, callback: Any, *args: Any) -> None:
        if self._loop.readers.get(fd) != (callback, args):
            self._loop.add_reader(fd, callback, *args)
