"""What prefork drops when a connection is lost: nobody is called back, and no place is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery.concurrency.asynpool import AsynPool
from kombu.asynchronous import Hub, set_event_loop

from celery_idem.lanes.pool import is_lost
from tests.support.alone import run_alone

#: Longest wait for a child, in seconds.
DEADLINE_S = 30.0


@contextmanager
def pool() -> Iterator[tuple[Any, Callable[..., None]]]:
    """A prefork pool of two children, and its event loop: runs until something is so."""
    hub = Hub()
    set_event_loop(hub)
    children = AsynPool(processes=2, synack=False, threads=False, sched_strategy="fair")
    children.register_with_event_loop(hub)

    def run_until(reached: Callable[[], bool]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not reached():
            assert time.monotonic() < end_s, "the pool is too slow"
            hub.call_later(0.05, lambda: None)  # or the loop may wait for ever
            next(hub.loop)

    run_until(lambda: len(children._all_inqueues) == 2)
    try:
        yield children, run_until
    finally:
        for child in children._pool:
            child.terminate()
            child.join()


def started(children: Any, run_until: Callable[..., None], seconds: float) -> Any:
    job = children.apply_async(time.sleep, (seconds,))
    run_until(lambda: job._accepted)
    return job


def a_job_that_no_child_has_accepted_is_lost() -> None:
    with pool() as (children, _):
        job = children.apply_async(time.sleep, (60,))
        assert not is_lost(job, children)

        children.flush()

        assert is_lost(job, children)


def what_waits_to_be_written_while_another_is_written_is_lost() -> None:
    """Before 5.6.3 it stays in the pool's cache then, though nobody will write it."""
    with pool() as (children, _):
        job = children.apply_async(time.sleep, (60,))
        children.outbound_buffer.clear()

        assert is_lost(job, children)


def a_job_that_runs_is_not_lost_and_neither_is_one_that_has_ended() -> None:
    with pool() as (children, run_until):
        short, long = children.apply_async(abs, (-1,)), started(children, run_until, 60)
        run_until(short.ready)

        assert not is_lost(short, children)
        assert not is_lost(long, children)


def a_forgotten_job_keeps_its_place_until_its_child_is_free() -> None:
    """As on Celery before 5.6.3, where the lost connection empties the pool's cache."""
    with pool() as (children, run_until):
        job = started(children, run_until, 1)
        children._cache.clear()

        before = is_lost(job, children)
        run_until(lambda: not children._busy_workers)

        assert not before
        assert is_lost(job, children)


def a_forgotten_job_keeps_no_place_when_its_child_has_another_or_is_dead() -> None:
    with pool() as (children, run_until):
        job = started(children, run_until, 60)
        children._cache.clear()
        child = job._write_to
        assert not is_lost(job, children)

        later = children.apply_async(time.sleep, (60,))
        later._write_to = child
        with_another = is_lost(job, children)
        later.discard()
        child.terminate()
        child.join()

        assert with_another
        assert is_lost(job, children)


@pytest.mark.parametrize(
    "scenario",
    [
        a_job_that_no_child_has_accepted_is_lost,
        what_waits_to_be_written_while_another_is_written_is_lost,
        a_job_that_runs_is_not_lost_and_neither_is_one_that_has_ended,
        a_forgotten_job_keeps_its_place_until_its_child_is_free,
        a_forgotten_job_keeps_no_place_when_its_child_has_another_or_is_dead,
    ],
    ids=lambda it: it.__name__,
)
def test_what_prefork_has_dropped_is_told_from_what_runs(scenario: Callable[[], None]) -> None:
    run_alone(scenario)
