"""Counters over processes: nothing is counted twice, and nothing is forgotten."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from celery_idem.metrics import counts as counting
from celery_idem.metrics.counts import FIRST_BYTES, Counts

pytestmark = pytest.mark.platform("linux", "darwin")


@pytest.fixture
def counts(tmp_path: Path) -> Iterator[Counts]:
    made = Counts(str(tmp_path))
    yield made
    made.close()


def in_a_child(counts: Counts, times: int, *key: str, killed: bool = False) -> int:
    """Count in a child that then ends; returns its pid."""
    pid = os.fork()
    if pid == 0:
        for _ in range(times):
            counts.add(*key)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def test_what_children_counted_stays_when_they_have_ended(counts: Counts) -> None:
    counts.add("a", "x")
    in_a_child(counts, 3, "a", "x")
    in_a_child(counts, 2, "a", "y", killed=True)

    for _ in range(2):  # also the second time, when their files are gone
        assert counts.totals() == {("a", "x"): 4, ("a", "y"): 2}
    assert len(list(counts.directory.iterdir())) == 1


def test_scrapes_at_once_count_nothing_twice(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server and a file ask at the same time; the first who sees a dead child takes it over."""
    for _ in range(20):
        in_a_child(counts, 5, "a")
    together = Barrier(8)
    read = counting._read

    def slowly(path: Path) -> Iterator[tuple[counting.Key, int]]:
        yield from list(read(path))
        time.sleep(0.01)  # another thread's turn, between what is read and what is removed

    monkeypatch.setattr(counting, "_read", slowly)

    def ask(_: int) -> int:
        together.wait(60)
        return counts.totals()["a",]

    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(ask, range(8)))

    assert seen == {100}


def test_threads_of_one_process_count_together(counts: Counts) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [counts.add("t") for _ in range(500)], range(8)))

    assert counts.totals() == {("t",): 4000}


def test_a_file_grows_and_keeps_what_is_in_it(counts: Counts) -> None:
    names = [f"task-{number}-{'x' * 100}-ä" for number in range(FIRST_BYTES // 50)]
    for name in names:
        counts.add("a", name)
    for name in names:
        counts.add("a", name)

    assert counts.totals() == {("a", name): 2 for name in names}


def test_a_pid_that_comes_again_goes_on_in_its_file(counts: Counts) -> None:
    counts.add("a")
    counts._in_child()  # what a fork does: no file is open

    counts.add("a")

    assert counts.totals() == {("a",): 2}


def test_only_the_folders_of_dead_workers_are_removed(tmp_path: Path, counts: Counts) -> None:
    dead = in_a_child(counts, 1, "a")
    left = tmp_path / f"celery-idem-metrics-{dead}-abc"
    left.mkdir()
    strange = tmp_path / "celery-idem-metrics-somebody"
    strange.mkdir()

    other = Counts(str(tmp_path))

    assert not left.exists()
    assert strange.exists()
    assert counts.directory.exists()
    other.close()
    assert not other.directory.exists()
