"""A process that uses SQLite is forked: neither of the two loses what it writes (S-I6).

A worker's main process renews leases while it starts its children.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import weakref
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from celery_idem.django.forks import Gate
from celery_idem.django.store import DjangoStore
from celery_idem.lease import LeaseKeeper
from tests.conformance.asking import KEY, RESULT, take
from tests.support.waiting import wait_until

#: Forks while a thread writes: without a gate every second child is locked out.
FORKS = 12
CHILD_S = 60

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


class Child:
    """A forked process that does this work, and says whether it answered with a true value."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.pid = os.fork()
        if self.pid:
            return
        signal.alarm(CHILD_S)  # one that hangs fails
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)

    def well(self) -> bool:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0


@pytest.fixture(params=["delete", "wal"])
def journal(request: pytest.FixtureRequest, database: str) -> Any:
    """The database in this journal mode, with no connection open in this process."""

    def turn(mode: str) -> None:
        with connections[database].cursor() as cursor:
            cursor.execute(f"PRAGMA journal_mode = {mode}")
        connections[database].close()

    turn(request.param)
    yield database
    turn("delete")


def test_a_child_that_is_forked_while_its_parent_writes_can_write(journal: str) -> None:
    store = DjangoStore(journal, patience_s=2)
    claim = take(store)
    store.close()
    lost = []
    for number in range(FORKS):
        forked, written = threading.Event(), []

        def write(forked: threading.Event = forked, written: list[bool] = written) -> None:
            while not forked.is_set():
                written.append(store.put_step(claim, "parent", b"value"))
            connections.close_all()

        writer = threading.Thread(target=write)
        writer.start()
        wait_until(lambda written=written: written, what="a write of the parent")  # type: ignore[misc]
        child = Child(lambda number=number: store.put_step(claim, f"child {number}", b"value"))  # type: ignore[misc]
        forked.set()
        writer.join(CHILD_S)
        if not child.well():
            lost.append(number)
    steps = store.get(KEY).steps  # type: ignore[union-attr]
    store.close()

    assert lost == []
    assert len(steps) == FORKS + 1


@pytest.mark.parametrize("journal", ["wal"], indirect=True)
def test_what_a_child_completes_is_there_whoever_closes_the_database(journal: str) -> None:
    """The last that holds a lock on the database clears the write-ahead log away."""
    store = DjangoStore(journal, patience_s=2)
    first, second = take(store), take(store, f"{KEY} 2")
    told, go = os.pipe(), os.pipe()

    def work() -> bool:
        done = store.complete(first, RESULT)
        os.write(told[1], b"1")
        os.read(go[0], 1)
        return done and store.complete(second, RESULT)

    child = Child(work)
    os.read(told[0], 1)
    store.close()
    with closing(sqlite3.connect(Path(connections[journal].settings_dict["NAME"]))) as other:
        other.execute("SELECT count(*) FROM idem_record").fetchone()
    os.write(go[1], b"1")
    assert child.well()

    states = [store.get(key).state.value for key in (KEY, f"{KEY} 2")]  # type: ignore[union-attr]
    store.close()
    for end in (*told, *go):
        os.close(end)
    assert states == ["done", "done"]


def test_a_child_does_not_end_the_connections_of_its_parents_keeper(database: str) -> None:
    keeper = LeaseKeeper(lambda: DjangoStore(database))
    kept = weakref.ref(keeper.store)

    child = Child(lambda: kept() is not None)

    assert child.well()


def test_a_fork_waits_for_calls_under_way_and_keeps_new_ones_out() -> None:
    gate, order, inside, go_on = Gate(30), [], threading.Event(), threading.Event()

    def call() -> None:
        with gate.passed():
            inside.set()
            go_on.wait(30)
            with gate.passed():  # a call within a call
                order.append("call")

    def late() -> None:
        with gate.passed():
            order.append("late call")

    def fork() -> None:
        gate.shut()
        order.append("fork")

    threads = [threading.Thread(target=it) for it in (call, fork, late)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    wait_until(lambda: gate._forks, what="a fork that waits")
    threads[2].start()
    go_on.set()
    threads[1].join(30)
    assert order == ["call", "fork"]
    gate.opened()
    for thread in threads:
        thread.join(30)

    assert order == ["call", "fork", "late call"]


def test_a_fork_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    gate, inside, go_on = Gate(0.05), threading.Event(), threading.Event()

    def call() -> None:
        with gate.passed():
            inside.set()
            go_on.wait(30)

    stuck = threading.Thread(target=call)
    stuck.start()
    assert inside.wait(30)
    gate.shut()
    gate.opened()
    go_on.set()
    stuck.join(30)

    assert "forked while SQLite is in use" in caplog.text
