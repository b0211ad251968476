"""Everything that a worker needs, in one place where all of it can be seen.

:func:`install` is called when the first :class:`~celery_idem.task.IdempotentTask` is bound to an
app. It adds one bootstep and a few signal receivers; apps without such a task are not touched.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

from celery import VERSION, bootsteps
from celery import signals as celery_signals

from celery_idem import revoking
from celery_idem.binding import binding_of
from celery_idem.core.errors import ConfigError
from celery_idem.doctor import clock as clock  # registers the remote-control command
from celery_idem.lanes.install import install_lanes
from celery_idem.run_times import PlainTasks, RunTimes
from celery_idem.stores.memory import MemoryStore
from celery_idem.unreported import EveryEnd

logger = logging.getLogger("celery_idem.worker")

#: How often a child looks whether its parent lives, where the kernel can't tell it, in seconds.
ORPHAN_CHECK_S = 0.25
#: How often the main process waits for dead children, in seconds: one system call per child.
DEAD_CHILD_CHECK_S = 0.25
_PR_SET_PDEATHSIG = 1


def install(app: Any) -> None:
    """Add the bootstep to this app, and the receivers to this process. Safe to call again."""
    app.steps["worker"].update((IdempotentWorker, EveryEnd))
    # By name: a producer binds its tasks, too, and need not load the worker's code.
    app.steps["consumer"].add(LeasesFirst)
    app.steps["consumer"].add("celery_idem.visibility.step:VisibilityStep")
    app.steps["consumer"].add("celery_idem.deadletters.step:DeadLetterStep")
    app.steps["consumer"].add("celery_idem.transport.buried:BuriedStep")
    app.steps["consumer"].add("celery_idem.metrics.step:MetricsStep")
    app.steps["consumer"].add("celery_idem.consumer_timeout:ConsumerTimeoutStep")
    install_lanes(app)
    _install_dead_letters()
    revoking.install(app)
    celery_signals.worker_process_init.connect(
        _in_new_child, weak=False, dispatch_uid="celery_idem.child"
    )
    celery_signals.task_prerun.connect(_plain_tasks.on_prerun, dispatch_uid="celery_idem.prerun")
    celery_signals.task_postrun.connect(_plain_tasks.on_postrun, dispatch_uid="celery_idem.postrun")
    celery_signals.task_success.connect(_on_success, weak=False, dispatch_uid="celery_idem.settle")


def _install_dead_letters() -> None:
    from celery_idem.deadletters import capture

    capture.install()


class IdempotentWorker(bootsteps.StartStopStep):
    """Checks the tasks before the worker takes a message.

    The lease keeper is not stopped with the worker: what still runs during a warm shutdown needs
    its lease. It is a daemon thread and ends with the process.
    """

    requires = ("celery.worker.components:Hub", "celery.worker.components:Pool")

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        check_tasks(worker.app)
        _prepare_tasks(worker.app)

    def include_if(self, worker: Any) -> bool:
        if worker.pool_cls.__module__.endswith("prefork"):
            _refuse_a_store_of_one_process(worker.app)
        return True

    def start(self, worker: Any) -> None:
        _warn_of_the_store(worker.app)
        _warn_of_the_broker(worker.app)
        _look_for_dead_children(worker)
        hear_dead_children_out(getattr(worker.pool, "_pool", None))
        _remember_busy_children(worker)


class LeasesFirst(bootsteps.StartStopStep):
    """A worker that was cut off has its leases again before it takes a message.

    Its own messages are delivered again at once then, and a lease may have run out with the
    outage: what still runs here is not to be taken over for a crash, least of all by this worker.
    """

    name = "celery_idem.leases_first"
    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, consumer: Any) -> None:
        """At every start of the consumer, before it consumes."""
        binding_of(consumer.app).keeper.renew_now()
        _restore_prefetch_in_the_loop(consumer)


def _restore_prefetch_in_the_loop(consumer: Any) -> None:
    """After a lost connection, only the consumer's loop reads the new one.

    Celery raises the prefetch again at each ack (``consumer.py:
    _restore_prefetch_count_after_connection_restart``), in green pools and threads by a job that
    has ended, which waits for RabbitMQ's answer beside the loop. Whichever of the two reads a
    message then waits for room in the pool; in a full one of gevent's, for ever. The loop itself
    asks for what is not as it should be.
    """
    restore = type(consumer)._restore_prefetch_count_after_connection_restart

    def later(*args: Any) -> None:
        qos = consumer.qos
        qos.set = lambda count: count  # ``prev`` stays behind, and the loop looks at that
        try:
            restore(consumer, *args)
        finally:
            vars(qos).pop("set", None)

    consumer._restore_prefetch_count_after_connection_restart = later


def _look_for_dead_children(worker: Any) -> None:
    """Notice a dead child in a fraction of a second, not at Celery's 5 s timer.

    The event that a child's pipe was closed comes just before the child can be waited for, so
    Celery 5.7 looks too early and then not again until the timer (``asynpool.py:
    _event_process_exit``). Seen: 0.1 to 5.2 s from the kill to the next start; with this, 0.3 s.
    """
    hub = getattr(worker, "hub", None)
    maintain = getattr(worker.pool, "maintain_pool", None)
    if hub is not None and maintain is not None:
        hub.call_repeatedly(DEAD_CHILD_CHECK_S, maintain)


def hear_dead_children_out(children: Any) -> None:
    """Read what a dead child still had to say before its job is given to another.

    Billiard reads the pipes of the children that it finds dead, then looks at every job, and gives
    those of dead children that had not been accepted to others (``pool.py:
    _join_exited_workers``). Of one that died between the two looks nothing was read: its job seems
    never to have begun, is written to a second child, and its crash is not counted, so a pill
    would be started once more than it is allowed. ``children`` is prefork's pool of processes;
    nothing is done for other pools.
    """
    if not hasattr(children, "process_flush_queues"):
        return
    gone = children.on_job_process_down

    def heard(job: Any, pid_gone: int) -> None:
        child = job._write_to
        if not job._accepted and child is not None and not child._is_alive():
            children.process_flush_queues(child)
            if job._accepted:
                return  # the next look finds this child dead, and its job lost
        gone(job, pid_gone)

    children.on_job_process_down = heard


def _remember_busy_children(worker: Any) -> None:
    """After a lost connection, give no job to a child that runs one.

    Before 5.7 Celery forgets then which children are busy (``asynpool.py: flush``), and a job that
    is written to a busy one waits until that one's run ends, whatever other children are free
    (C24: a worker that says it is connected, and runs nothing).
    """
    children: Any = getattr(worker.pool, "_pool", None)
    if not hasattr(children, "_busy_workers") or VERSION >= (5, 7):
        return
    flush, busy = worker.pool.flush, children._busy_workers
    # 5.5 forgets the jobs as well: whose child was busy then is known here until it is done
    kept: dict[int, Any] = {}

    def available(fd: int) -> None:
        kept.pop(fd, None)
        busy.discard(fd)

    def remembering() -> None:
        running = [job._write_to for job in list(children._cache.values()) if job._accepted]
        running += kept.values()
        flush()
        kept.clear()
        kept.update(
            {child.inqW_fd: child for child in running if child is not None and child._is_alive()}
        )
        busy.update(kept)

    children._mark_worker_as_available = available
    worker.pool.flush = remembering


def _refuse_a_store_of_one_process(app: Any) -> None:
    if isinstance(binding_of(app).store, MemoryStore):
        raise ConfigError(
            "idem: the memory store is one process's, and the prefork pool has many: each child "
            'would have records of its own. Use a Redis URL (idem["store"]), or --pool=threads'
        )


def check_tasks(app: Any) -> None:
    """Work out every task's terms. Raises :class:`~celery_idem.core.errors.ConfigError` for the
    first that can't keep the promise, with the arithmetic where there is some."""
    from celery_idem.options import check_attributes, check_plain
    from celery_idem.task import IdempotentTask, is_celerys_own

    for task in app.tasks.values():
        if not isinstance(task, IdempotentTask):
            check_plain(task)
        elif not is_celerys_own(task.name):
            check_attributes(type(task))
            task._terms  # noqa: B018 - worked out here, so that an error is one of start-up
    binding_of(app).store  # noqa: B018 - likewise


def _warn_of_the_store(app: Any) -> None:
    try:
        for sentence in binding_of(app).keeper.store.warnings():
            logger.warning("%s", sentence)
    except Exception as error:
        logger.warning("the store could not be looked at: %s", error)


def _warn_of_the_broker(app: Any) -> None:
    """A Redis that evicts what it holds may lose the queue itself (C22)."""
    from celery_idem.doctor.servers import broker_durability

    try:
        durability = broker_durability(app)
    except Exception as error:
        logger.warning("the broker could not be looked at: %s", error)
        return
    if durability is not None and durability.evicts:
        logger.warning("the broker: %s", durability.eviction("messages"))


def _prepare_tasks(app: Any) -> None:
    """A task's own request class does what ours does, too, and STARTED is said by who starts."""
    from celery_idem import started
    from celery_idem.ending import joined
    from celery_idem.request import IdempotentRequest
    from celery_idem.task import IdempotentTask, is_celerys_own

    ours: list[Any] = [it for it in app.tasks.values() if isinstance(it, IdempotentTask)]
    for task in ours:
        if not is_celerys_own(task.name):
            task.Request = joined(task.Request, IdempotentRequest, task.name)
            started.take_over(task)


def _times_of_plain(task: Any) -> RunTimes | None:
    """Where a task's run times are noted; an idempotent one notes its own."""
    from celery_idem.task import IdempotentTask, is_celerys_own

    if isinstance(task, IdempotentTask) or is_celerys_own(task.name):
        return None
    return binding_of(task.app).run_times


_plain_tasks = PlainTasks(_times_of_plain)


def _on_success(sender: Any = None, **_: Any) -> None:
    from celery_idem.run import settle
    from celery_idem.task import IdempotentTask

    if isinstance(sender, IdempotentTask):
        settle(sender)


def _in_new_child(**_: Any) -> None:
    """A child ends with its parent, so that no orphan works on under a claim that runs out (C61).

    On Linux the kernel kills it; elsewhere it looks by itself. The kernel's signal is tied to the
    thread that forked, so it is asked for only where that is the main thread.
    """
    parent = os.getppid()
    if sys.platform == "linux" and threading.current_thread().name == "MainThread":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0:
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return
    threading.Thread(
        target=_end_when_orphaned, args=(parent,), name="idem-orphan-watch", daemon=True
    ).start()


def _end_when_orphaned(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_S)
    os.kill(os.getpid(), signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
