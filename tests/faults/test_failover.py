"""C64: the master fails over while leases and messages are not replicated, and believes on.

Replication is asynchronous, so what the master had acknowledged may be unknown to its successor:
a second holder gets the claim. What holds then is the fence: of two that believe, the table that
looks at the fence accepts one.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_idem.core.record import Claim, Claimed, ClaimRequest, Lease, State
from celery_idem.stores.redis.store import RedisStore
from tests.faults.conftest import APP, DEADLINE_S, record_of
from tests.support.effects import Effects
from tests.support.sentinel import SentinelTrio
from tests.support.servers import RedisServer, missing_redis
from tests.support.waiting import wait_until

PATIENCE_S = 120.0


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[SentinelTrio]:
    if reason := missing_redis():
        pytest.skip(reason)
    trio = SentinelTrio(tmp_path / "sentinel")
    try:
        yield trio.start()
    finally:
        trio.close()


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A table whose row looks at the fence."""
    path = tmp_path / "book.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE book (name PRIMARY KEY, fence INTEGER, writer)")
        db.execute("INSERT INTO book VALUES ('row', 0, NULL)")
    return path


def write(book: Path, claim: Claim, writer: str) -> int:
    """Rows that a holder's write changed."""
    with contextlib.closing(sqlite3.connect(book, timeout=30)) as db, db:
        return db.execute(
            "UPDATE book SET fence = :fence, writer = :writer WHERE fence < :fence",
            {"fence": claim.fence, "writer": writer},
        ).rowcount


def written(book: Path) -> Any:
    with contextlib.closing(sqlite3.connect(book, timeout=30)) as db:
        return db.execute("SELECT fence, writer FROM book").fetchone()


def store_behind(trio: SentinelTrio) -> RedisStore:
    return RedisStore.from_url(trio.url(), patience_s=PATIENCE_S, **trio.options)


def asked(owner: str, lease_ms: int = 60_000) -> ClaimRequest:
    return ClaimRequest("k", owner, lease_ms=lease_ms, retention_ms=3_600_000)


def lease_of(claim: Claim) -> Lease:
    return Lease(claim.key, claim.owner, claim.lease_ms, claim.retention_ms)


def cut_replication(trio: SentinelTrio) -> tuple[RedisServer, RedisServer]:
    """Freeze the replica and close its link: what the master takes now, only the master has."""
    master = trio.master()
    replica = trio.other(master)
    replica.pause()
    with master.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        wait_until(
            lambda: client.info("replication")["connected_slaves"] == 0, what="a lonely master"
        )
    return master, replica


def fail_over(trio: SentinelTrio, master: RedisServer, replica: RedisServer) -> None:
    """The master hangs; the replica, which lacks the last writes, takes over."""
    master.pause()
    replica.cont()
    trio.wait_new_master(master)


@pytest.mark.slow
def test_a_claim_that_was_not_replicated_commits_at_most_once(
    trio: SentinelTrio, book: Path
) -> None:
    """C64 at the store: STOP the master, promote, continue the old master."""
    first_store, second_store = store_behind(trio), store_behind(trio)
    before = first_store.claim(asked("before", lease_ms=1))
    assert isinstance(before, Claimed)
    with trio.master().client() as client:
        client.execute_command("WAIT", 1, 0)
    master, replica = cut_replication(trio)
    first = first_store.claim(asked("first"))
    assert isinstance(first, Claimed)
    fail_over(trio, master, replica)

    second = second_store.claim(asked("second"))

    assert isinstance(second, Claimed), "the new master knows nothing of the first claim"
    assert second.claim.fence > first.claim.fence, "the fence grows although the claim was lost"
    assert second.crashes == 1, "the crash that was replicated is still counted"
    master.cont()
    trio.wait_in_sync(master, DEADLINE_S * 2)
    assert write(book, second.claim, "second") == 1
    assert write(book, first.claim, "first") == 0, "the late holder's write is refused"
    [renewed] = first_store.renew([lease_of(first.claim)])
    assert renewed is False
    assert first_store.complete(first.claim, b"inline||\nfirst") is False
    assert second_store.complete(second.claim, b"inline||\nsecond") is True
    assert written(book) == (second.claim.fence, "second")


@pytest.mark.slow
def test_both_sides_believe_and_one_commit_is_accepted(trio: SentinelTrio, book: Path) -> None:
    """C64: the old master wakes up and takes the old holder's completion, before it is told that
    it is no master any more. The row is what decides."""
    store = store_behind(trio)
    master, replica = cut_replication(trio)
    with RedisStoreAt(master) as old_side:
        first = old_side.claim(asked("first"))
        assert isinstance(first, Claimed)
        fail_over(trio, master, replica)
        second = store.claim(asked("second"))
        assert isinstance(second, Claimed)
        assert store.complete(second.claim, b"inline||\nsecond") is True
        assert write(book, second.claim, "second") == 1

        master.cont()
        believed = completes(old_side, first.claim)

        assert write(book, first.claim, "first") == 0, f"the old side said {believed}"
    trio.wait_in_sync(master, DEADLINE_S * 2)
    record = store.get("k")
    assert record is not None
    assert (record.state, record.fence) == (State.DONE, second.claim.fence)
    assert written(book) == (second.claim.fence, "second")


class RedisStoreAt:
    """A store that stays with one server, as a client does whose connection was open."""

    def __init__(self, server: RedisServer) -> None:
        self._store = RedisStore.from_url(server.url(), patience_s=0)

    def __enter__(self) -> RedisStore:
        return self._store

    def __exit__(self, *exc_info: object) -> None:
        self._store.close()


def completes(store: RedisStore, claim: Claim) -> bool | str:
    """What the old side says; it may have been demoted already."""
    try:
        return store.complete(claim, b"inline||\nfirst")
    except Exception as error:
        return type(error).__name__


@pytest.fixture
def load_on_trio(trio: SentinelTrio, effects: Effects, load_app: Any, book: Path) -> Any:
    """Factory of the app of faulty tasks with broker, store and results behind Sentinels."""

    def make(scheme: str) -> Any:
        options = dict(trio.options)
        transport: dict[str, Any] = {**options, "lease_s": 2}
        if scheme == "sentinel":
            transport = {**options, "visibility_timeout": 4, "unacked_restore_interval": 1}
            transport["unacked_restore_throttle"] = 1
        return load_app(
            "tests.apps.faulty",
            TEST_BROKER=trio.url(scheme),
            TEST_BACKEND=trio.url(),
            TEST_TRANSPORT=json.dumps(transport),
            TEST_CONF=json.dumps({"result_backend_transport_options": options}),
            TEST_IDEM=json.dumps({"lease_s": 2, "store": trio.url()}),
            TEST_BOOKS=str(book),
        )

    return make


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sentinel-streams", "sentinel"])
def test_a_job_that_runs_through_a_failover_commits_once(
    trio: SentinelTrio,
    load_on_trio: Any,
    start_worker: Any,
    effects: Effects,
    gate: Any,
    book: Path,
    scheme: str,
) -> None:
    """C64 with workers: the first one's claim is not replicated; it sleeps through the failover.
    The row accepts the second one's write only, and both are there for the next job."""
    tasks = load_on_trio(scheme)
    tasks.book.delay("row", str(gate()))
    wait_for_replica(trio)
    master, replica = cut_replication(trio)
    first = start_worker(APP, wait=False)
    effects.wait_count("start:row", 1, 2 * DEADLINE_S)
    first.stop_tree()

    fail_over(trio, master, replica)
    master.cont()
    trio.wait_in_sync(master, 2 * DEADLINE_S)
    second = start_worker(APP, wait=False)
    effects.wait_count("start:row", 2, 2 * DEADLINE_S)
    gate(2).touch()
    wait_until(lambda: is_done(tasks, "faulty.book:book:row"), 2 * DEADLINE_S, "the record")
    first.cont_tree()
    gate(1).touch()
    effects.wait_count("write:row", 2, 2 * DEADLINE_S)

    kept, refused = effects.lines("write:row")
    assert (kept["accepted"], refused["accepted"]) == (1, 0)
    assert kept["fence"] > refused["fence"]
    assert written(book)[0] == record_of(tasks, "faulty.book:book:row").fence == kept["fence"]
    for name in ("next", "and another"):
        wait_until(lambda name=name: sent(tasks, name), DEADLINE_S, "a master that takes messages")
        effects.wait_count(name, 1, 2 * DEADLINE_S)
    assert effects.count("start:row") == 2
    assert [worker.returncode for worker in (first, second)] == [None, None], "both live"


def wait_for_replica(trio: SentinelTrio) -> None:
    """What was sent so far, the replica has."""
    with trio.master().client() as client:
        assert client.execute_command("WAIT", 1, 10_000) == 1


def is_done(tasks: Any, key: str) -> bool:
    with contextlib.suppress(AssertionError, redis.RedisError):
        return record_of(tasks, key).state is State.DONE
    return False


def sent(tasks: Any, name: str) -> bool:
    with contextlib.suppress(Exception):
        tasks.work.apply_async((name,), retry=False)
        return True
    return False
