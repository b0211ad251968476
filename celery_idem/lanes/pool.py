"""Hear of every request that the pool takes and ends, whatever the pool and the Celery."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_idem.lanes.consumer import WorkerLanes


Callback = Callable[..., Any] | None


def _nobody(entry: Running) -> None:
    """Told of ends before the pool has the request."""


@dataclass(slots=True, eq=False)
class Running:
    """One request that was handed to the pool, and its callbacks there."""

    request: Any
    lane: str
    started_s: float = field(default_factory=time.monotonic)
    applied: bool = False  # the pool has it; before that, Celery may still drop it as revoked
    job: Any = None  # what the pool's ``apply_async`` returned
    _ended: Callable[[Running], None] = _nobody
    _accept: Callback = None
    _callback: Callback = None
    _error: Callback = None
    _timeout: Callback = None

    def watch(self, options: dict[str, Any], ended: Callable[[Running], None]) -> None:
        """Put itself between the pool and the request's callbacks; ``ended`` is told last."""
        self._ended = ended
        self._accept = options.get("accept_callback")
        self._callback = options.get("callback")
        self._error = options.get("error_callback")
        self._timeout = options.get("timeout_callback")
        options["accept_callback"] = self.on_accepted
        options["callback"] = self.on_success
        options["error_callback"] = self.on_failure
        options["timeout_callback"] = self.on_timeout

    def on_accepted(self, *args: Any, **kwargs: Any) -> Any:
        """A process has begun with it."""
        self.started_s = time.monotonic()
        return self._accept(*args, **kwargs) if self._accept else None

    def on_success(self, *args: Any, **kwargs: Any) -> Any:
        """The process has reported how it went, whether well or not."""
        try:
            return self._callback(*args, **kwargs) if self._callback else None
        finally:
            self._ended(self)

    def on_failure(self, *args: Any, **kwargs: Any) -> Any:
        """It could not be run to its end: a lost process, a message that can't be pickled."""
        try:
            return self._error(*args, **kwargs) if self._error else None
        finally:
            self._ended(self)

    def on_timeout(self, soft: bool, *args: Any, **kwargs: Any) -> Any:
        """A time limit: after a soft one it is still there."""
        try:
            return self._timeout(soft, *args, **kwargs) if self._timeout else None
        finally:
            if not soft:
                self._ended(self)


def is_lost(job: Any, children: Any) -> bool:
    """Whether prefork has dropped this job without a word, and no child works on it.

    ``children`` is the pool's pool. When a connection is lost, ``asynpool.py: flush`` calls nobody
    back for what it drops: what no child has accepted, and before Celery 5.6.3 what runs as well.
    A child that works on is not free before it has ended: were its place counted as free, what is
    given to the pool then would wait behind it, or take the process that is reserved for others.
    """
    cache = getattr(job, "_cache", None)
    if cache is None or job.ready():  # no billiard result: these pools drop nothing
        return False
    if job._job not in cache:
        return not _is_worked_on(job, children)
    # before 5.6.3 what waited to be written may stay in the cache, and is written by nobody
    buffer = getattr(children, "outbound_buffer", None)
    return buffer is not None and job._write_to is None and job not in buffer


def _is_worked_on(job: Any, children: Any) -> bool:
    """Whether the pool keeps other jobs from the child that this one was written to."""
    child = job._write_to
    if child is None or child.inqW_fd not in getattr(children, "_busy_workers", ()):
        return False
    if any(other._write_to is child for other in list(job._cache.values())):
        return False  # it is busy with one that came later
    return bool(child._is_alive())


class HubWaker:
    """Ends the event loop's wait from another thread.

    kombu 5.5's ``hub.call_soon`` does not: what a thread has finished, and its ack, would wait for
    the next event, up to a second. Newer ones have a waker of their own.
    """

    def __init__(self, hub: Any) -> None:
        self._hub = hub
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def listen(self) -> None:
        """From now on; a connection that breaks takes all readers from the loop."""
        self._hub.add_reader(self._reader, self._drain)

    def wake(self) -> None:
        """The loop looks at what is due. From any thread."""
        with contextlib.suppress(OSError):  # full: it is awake already
            self._writer.send(b"\0")

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            self._reader.recv(4096)


def is_threaded(pool: Any) -> bool:
    """Whether jobs end in threads of this process, beside the event loop."""
    return "thread" in type(pool).__module__


def waits_for_threads(consumer: Any) -> bool:
    """Whether jobs end in threads that the event loop does not hear of by itself."""
    hub = consumer.hub
    return hub is not None and is_threaded(consumer.pool) and not hasattr(hub, "_waker")


def ack_at_once(consumer: Any) -> None:
    """In green pools, send an ack when its job has ended, as Celery 5.7 does by itself.

    Older ones send it when the next message comes, and with all windows full none does: acks of
    all lanes would go out together every two seconds, and nothing be left to choose from.
    """
    if consumer.hub is not None or hasattr(consumer, "call_soon_ack"):
        return
    if not getattr(consumer.pool, "is_green", False):
        return
    make: Callable[[], Any] = consumer.create_task_handler

    def handler() -> Any:
        consumer.call_soon = _at_once
        try:
            return make()
        finally:
            vars(consumer).pop("call_soon", None)

    consumer.create_task_handler = handler


def _at_once(act: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    act(*args, **kwargs)  # ack_log_error: it logs what goes wrong


def stop_asking_at_once(consumer: Any, lanes: WorkerLanes) -> None:
    """Ask a lost connection for nothing more, not even while Celery closes it: green threads end
    their jobs meanwhile, and a message that comes by a connection which nobody reads is lost."""
    mourn: Callable[[BaseException], None] = consumer.on_connection_error_after_connected

    def on_connection_error(error: BaseException) -> None:
        lanes.fetch = None
        mourn(error)

    consumer.on_connection_error_after_connected = on_connection_error


def watch_pool(consumer: Any, lanes: WorkerLanes, waker: HubWaker | None) -> None:
    """Tell the lanes of every request that the pool takes and ends."""
    pool, hub = consumer.pool, consumer.hub
    apply_async = pool.apply_async

    def in_green(entry: Running) -> None:
        # its greenlet still counts in the pool: starting the next from here would block it
        consumer.timer.call_after(0, lanes.ended, (entry,))

    def in_thread(entry: Running) -> None:
        lanes.ended_elsewhere(entry)
        hub.call_soon(lanes.note_ends)
        if waker is not None:
            waker.wake()

    ended = lanes.ended
    if getattr(pool, "is_green", False):
        ended = in_green
    elif is_threaded(pool) and hub is not None:
        ended = in_thread

    def watched(target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        entry = lanes.applying(getattr(options.get("callback"), "__self__", None))
        if entry is not None:
            entry.watch(options, ended)
        job = apply_async(target, args or (), kwargs or {}, **options)
        if entry is not None:
            entry.job = job
        return job

    pool.apply_async = watched
