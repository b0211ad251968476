"""A child that dies is heard out: a job that it had begun is not given to another unseen."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery.concurrency.asynpool import AsynPool, _get_job_writer
from kombu.asynchronous import Hub

from celery_idem.worker import hear_dead_children_out
from tests.support.alone import run_alone
from tests.support.waiting import wait_until

DEADLINE_S = 30.0


def die(began: str) -> None:
    with Path(began).open("a") as file:
        file.write("began\n")
    os.kill(os.getpid(), signal.SIGKILL)


def turn_until(hub: Hub, happened: Callable[[], bool], what: str) -> None:
    def turned() -> bool:
        hub.run_once()
        return happened()

    wait_until(turned, DEADLINE_S, what)


def is_dead(pid: int) -> bool:
    """Without waiting for it as its parent does: the pool is to find it dead by itself."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def die_just_after_the_start(began: str, heard: bool) -> None:
    """Celery's own pool of one process, in a loop that turns only when this says so."""
    hub = Hub()
    children = AsynPool(processes=1, threads=False)
    children.register_with_event_loop(hub)
    if heard:
        hear_dead_children_out(children)
    pid = children._pool[0].pid
    turn_until(hub, lambda: len(children._all_inqueues) == 1, "the child to be up")
    os.kill(pid, signal.SIGSTOP)
    job: Any = children.apply_async(die, (began,))
    turn_until(
        hub,
        lambda: job._write_to is not None and _get_job_writer(job) is None,
        "the job to be written to its child",
    )
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: is_dead(pid), DEADLINE_S, what="the child to die")

    children.on_job_process_down(job, pid)

    def lost() -> bool:
        children.maintain_pool()
        return bool(job._worker_lost) or job.ready()

    turn_until(hub, lost, "the job to be found lost")
    for child in children._pool:
        os.kill(child.pid, signal.SIGKILL)
        child.join()


@pytest.mark.parametrize(("heard", "times"), [(True, 1), (False, 2)], ids=["heard", "unheard"])
def test_a_job_that_a_dead_child_had_begun_is_lost_and_not_begun_again(
    tmp_path: Path, heard: bool, times: int
) -> None:
    """The child dies between the pool's look at the children and that at the jobs: made here by
    not turning the loop. Unheard, as Celery does it, the job is written to a second child."""
    began = tmp_path / "began"

    run_alone(die_just_after_the_start, str(began), heard)

    assert began.read_text().splitlines() == ["began"] * times
