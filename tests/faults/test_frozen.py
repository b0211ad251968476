"""A holder that was away for longer than its lease, or kept everybody from the clock (C59, C60)."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from celery_idem.core.record import State
from tests.faults.conftest import DEADLINE_S, holder_of, record_of
from tests.support.effects import Effects
from tests.support.waiting import wait_until

#: A C call of a few seconds on any machine of these years: longer than two leases of this module.
POWER = 16_000_000
SHORT = {"lease_s": 0.8}


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """An SQLite file: the store that holds the effect, and the last barrier (S-V6)."""
    path = tmp_path / "books.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE book (name PRIMARY KEY, fence INTEGER, writer INTEGER)")
        connection.execute("INSERT INTO book VALUES ('page', 0, NULL)")
    return path


def row(books: Path) -> tuple[int, int]:
    with sqlite3.connect(books) as connection:
        found: tuple[int, int] = connection.execute("SELECT fence, writer FROM book").fetchone()
        return found


@pytest.mark.parametrize(
    ("pool", "wakes"),
    [
        ("prefork", "while its successor works"),
        ("prefork", "when its successor is done"),
        ("threads", "while its successor works"),
    ],
)
def test_a_woken_owner_can_neither_complete_nor_overwrite(
    load: Any, two_workers: Any, effects: Effects, gate: Any, books: Path, pool: str, wakes: str
) -> None:
    """C60, C59 (c)."""
    tasks = load(TEST_BOOKS=str(books))
    workers = two_workers(pool=pool)
    result = tasks.book.delay("page", str(gate()))
    effects.wait_count("start:page", 1)
    old, new = holder_of(workers, effects, "page")

    old.stop_tree()
    effects.wait_count("start:page", 2, DEADLINE_S)
    if wakes == "while its successor works":
        old.cont_tree()
        gate(1).touch()
        effects.wait_count("write:page", 1)
        old.wait_log("lease lost")
        gate(2).touch()
        effects.wait_count("write:page", 2)
    else:
        gate(2).touch()
        effects.wait_count("write:page", 1)
        wait_until(
            lambda: record_of(tasks, "faulty.book:book:page").state is State.DONE,
            DEADLINE_S,
            "the successor's completion",
        )
        old.cont_tree()
        gate(1).touch()
        old.wait_log("lease lost")

    assert result.get(timeout=DEADLINE_S) == f"page by {result_pid(effects, new)}"
    effects.wait_count("write:page", 2)
    first, second = effects.lines("start:page")
    assert 0 < first["fence"] < second["fence"]
    fence, _ = row(books)
    assert fence == second["fence"], "the newest holder's write stands"
    with_lease = [w for w in effects.lines("write:page") if w["fence"] == second["fence"]]
    assert [w["accepted"] for w in with_lease] == [1]
    without = [w for w in effects.lines("write:page") if w["fence"] == first["fence"]]
    assert [w["lost"] for w in without] == [True]
    if wakes == "when its successor is done":
        assert [w["accepted"] for w in without] == [0]
    wait_settled(tasks)
    record = record_of(tasks, "faulty.book:book:page")
    assert (record.state, record.runs, record.crashes) == (State.DONE, 2, 1)
    assert record.fence == second["fence"]


def result_pid(effects: Effects, new: Any) -> int:
    pid = int(effects.lines("start:page")[1]["pid"])
    assert pid in new.members()
    return pid


def wait_settled(tasks: Any) -> None:
    """The woken owner's message came back and adopted the outcome; nothing is left over."""
    with tasks.app.connection_for_read() as connection:
        client = connection.default_channel.client
        wait_until(
            lambda: client.llen("celery") == 0 and client.hlen("unacked") == 0,
            DEADLINE_S,
            "an empty queue and no delivery",
        )


@pytest.mark.parametrize("how", ["fails", "rejects", "replaces"])
def test_a_woken_owner_tells_nobody_how_it_ended(
    load: Any, two_workers: Any, effects: Effects, gate: Any, how: str
) -> None:
    """No failure over its successor's result, no letter of work that is done, no replacement."""
    tasks = load(SHORT)
    workers = two_workers()
    result = tasks.leaves.delay("late", str(gate()), how)
    effects.wait_count("start:late", 1)
    old, _ = holder_of(workers, effects, "late")

    old.stop_tree()
    effects.wait_count("start:late", 2, DEADLINE_S)
    gate(2).touch()
    done = result.get(timeout=DEADLINE_S)
    gate(1).touch()
    old.cont_tree()
    old.wait_log(rf"{result.id}\] ignored", DEADLINE_S)

    kept = tasks.app.backend.get_task_meta(result.id, cache=False)
    assert (kept["status"], kept["result"]) == ("SUCCESS", done)
    assert "dead letter" not in old.log_text()
    assert effects.keys() == ["start:late", "start:late"]


def test_a_busy_python_loop_keeps_its_lease(load: Any, two_workers: Any, effects: Effects) -> None:
    """C59 (a)."""
    tasks = load(idem=SHORT)
    two_workers()

    assert tasks.spins.delay("loop", 4.0).get(timeout=DEADLINE_S) == "loop"
    assert effects.count("start:loop") == 1
    assert record_of(tasks, "faulty.spins:spin:loop").crashes == 0


def test_a_c_call_that_holds_the_gil_keeps_its_lease_in_prefork(
    load: Any, two_workers: Any, effects: Effects
) -> None:
    """C59 (b): the parent renews for a child that it sees alive."""
    tasks = load(idem=SHORT)
    two_workers()

    value = tasks.holds_gil.delay("pow", POWER).get(timeout=DEADLINE_S)

    (start,) = effects.lines("start:pow")
    assert value == f"pow by {start['pid']}"
    took_s = effects.lines("pow")[0]["monotonic"] - start["monotonic"]
    assert took_s > 2 * SHORT["lease_s"], "the call was too short to show anything"
    assert record_of(tasks, "faulty.holds_gil:gil:pow").crashes == 0


@pytest.mark.parametrize(
    ("pool", "task", "argument"),
    [
        ("threads", "holds_gil", POWER),
        ("gevent", "blocks", 5.0),
    ],
)
def test_elsewhere_a_worker_that_is_kept_from_renewing_is_fenced(
    load: Any, two_workers: Any, effects: Effects, pool: str, task: str, argument: Any
) -> None:
    """C59 (b, d): a second start may happen; then the first can't commit."""
    tasks = load(idem=SHORT)
    workers = two_workers(pool=pool)

    result = getattr(tasks, task).delay("x", argument)
    value = result.get(timeout=DEADLINE_S)
    effects.wait_count("x", effects.count("start:x"), DEADLINE_S)

    key = {"holds_gil": "faulty.holds_gil:gil:x", "blocks": "faulty.blocks:block:x"}[task]
    starts = effects.lines("start:x")
    record = record_of(tasks, key)
    assert record.fence == starts[-1]["fence"], "the last holder is the one that completed"
    assert value == f"x by {starts[-1]['pid']}"
    assert record.crashes == len(starts) - 1
    if len(starts) > 1:
        loser = next(w for w in workers if starts[0]["pid"] in w.members())
        loser.wait_log("lease lost", DEADLINE_S)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_holder_that_sleeps_between_claim_and_body_does_not_begin_it(
    load: Any, two_workers: Any, effects: Effects, gate: Any, pool: str
) -> None:
    """C60, found by chaos: it woke up after its successor was done, and ran the body once more."""
    tasks = load(TEST_CLAIMED=str(gate(0)))
    workers = two_workers(pool=pool)
    result = tasks.work.delay("once")
    effects.wait_count("claimed", 1, DEADLINE_S)
    pid = effects.lines("claimed")[0]["pid"]
    [old] = [worker for worker in workers if pid in worker.members()]

    old.stop_tree()
    effects.wait_count("once", 1, DEADLINE_S)
    old.cont_tree()
    gate(0).touch()

    old.wait_log("lease lost", DEADLINE_S)
    assert result.get(timeout=DEADLINE_S).startswith("once by")
    assert effects.count("start:once") == 1
