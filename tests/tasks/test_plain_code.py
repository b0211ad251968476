"""``idempotent()`` around plain code, on a real Redis (S-I10)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_idem import (
    AlreadyProcessed,
    InProgress,
    KeyReused,
    LeaseLost,
    ResultUnavailable,
    idempotent,
)
from celery_idem.binding import store_of
from celery_idem.core.record import ClaimRequest, State
from celery_idem.stores.memory import MemoryStore
from celery_idem.stores.redis.store import RedisStore
from tests.support.effects import Effects
from tests.support.processes import guarded
from tests.support.waiting import wait_until
from tests.support.workers import ROOT


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    app = Celery("plain_code", broker=redis_url, set_as_current=False)
    app.conf.idem = {"lease_s": 1}
    yield app
    app.close()


@pytest.fixture
def store(app: Celery) -> Any:
    return store_of(app)


def test_a_block_runs_once_and_a_duplicate_is_told(app: Celery, store: Any) -> None:
    with idempotent("otp:1", ttl=60, app=app) as claim:
        assert claim.fence > 0

    with pytest.raises(AlreadyProcessed, match="otp:1"), idempotent("otp:1", ttl=60, app=app):
        pytest.fail("the block ran again")
    assert store.get("otp:1").state is State.DONE


def test_a_block_that_raises_gives_the_key_back(app: Celery, store: Any) -> None:
    with pytest.raises(ZeroDivisionError), idempotent("raises", ttl=60, app=app):
        _ = 1 / 0
    assert store.get("raises").state is State.FREE

    with idempotent("raises", ttl=60, app=app) as claim:
        assert claim.crashes == 0, "a failure is no crash"


def test_a_key_can_be_used_again_when_its_ttl_is_over(app: Celery, store: Any) -> None:
    with idempotent("ttl", ttl=1, app=app):
        pass
    wait_until(lambda: store.get("ttl") is None, what="the end of the ttl")

    with idempotent("ttl", ttl=1, app=app):
        pass


def test_of_many_threads_one_runs_the_block(app: Celery) -> None:
    inside, refusals = [], []
    ready, go = threading.Barrier(8), threading.Event()

    def run() -> str:
        ready.wait(30)
        try:
            with idempotent("threads", ttl=60, app=app) as claim:
                inside.append(claim.fence)
                go.wait(30)
        except InProgress as refused:
            refusals.append(refused.retry_after_s)
            return "in progress"
        return "ran"

    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(run) for _ in range(8)]
        wait_until(lambda: sum(r.done() for r in runs) == 7, what="seven refusals")
        go.set()

    assert sorted(r.result() for r in runs) == ["in progress"] * 7 + ["ran"]
    assert len(inside) == 1
    assert all(0 < seconds <= 1 for seconds in refusals)


def test_a_long_block_keeps_its_lease(app: Celery, store: Any) -> None:
    with idempotent("long", ttl=60, app=app) as claim:
        first = store.get("long").lease_until_ms
        wait_until(
            lambda: store.get("long").lease_until_ms > first + 2500, what="more than two leases"
        )
        assert not claim.lost

    assert store.get("long").runs == 1


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_a_long_block_keeps_its_lease_in_a_store_of_its_own(
    app: Celery, redis_url: str, kind: str
) -> None:
    own: Any = MemoryStore() if kind == "memory" else RedisStore.from_url(redis_url, prefix="own")
    with idempotent("own", ttl=60, lease_s=0.3, app=app, store=own):
        first = own.get("own").lease_until_ms
        wait_until(lambda: own.get("own").lease_until_ms > first + 700, what="more than two leases")

    assert own.get("own").state is State.DONE
    assert store_of(app).get("own") is None, "the app's store has nothing to do with it"


def test_a_block_that_lost_its_lease_says_so_at_its_end(app: Celery, store: Any) -> None:
    block = idempotent("lost", ttl=60, app=app)
    claim = block.__enter__()
    store.crash("lost", claim.claim.owner)
    store.claim(ClaimRequest("lost", "another", 60_000, 60_000))

    with pytest.raises(LeaseLost, match="taken over"):
        block.__exit__(None, None, None)
    assert store.get("lost").owner == "another"


def test_a_decorated_function_gives_the_duplicate_its_result(app: Celery) -> None:
    made = []

    @idempotent("invoice:{order}", ttl=60, on_duplicate="return", app=app)
    def invoice(order: int, total: Any = None) -> Any:
        made.append(order)
        return total

    for total in (None, 0, "", [], {"a": [1, 2]}):
        order = len(made)
        assert invoice(order, total) == invoice(order, total=total) == total
    assert made == [0, 1, 2, 3, 4]
    with pytest.raises(KeyReused):
        invoice(0, "another")


def test_a_decorated_function_may_raise_for_a_duplicate_and_the_error_has_the_result(
    app: Celery,
) -> None:
    @idempotent("mail:{to}", ttl=60, app=app)
    def mail(to: str) -> str:
        return f"sent to {to}"

    mail("ann")

    with pytest.raises(AlreadyProcessed) as duplicate:
        mail("ann")
    assert duplicate.value.result == "sent to ann"


def test_a_result_that_was_not_kept_is_none_in_the_error_and_an_error_as_a_result(
    app: Celery,
) -> None:
    class Receipt:
        pass

    @idempotent("raise:{n}", ttl=60, app=app)
    def raising(n: int) -> Receipt:
        return Receipt()

    @idempotent("return:{n}", ttl=60, on_duplicate="return", app=app)
    def returning(n: int) -> Receipt:
        return Receipt()

    assert isinstance(raising(1), Receipt)
    assert isinstance(returning(1), Receipt)
    with pytest.raises(AlreadyProcessed) as duplicate:
        raising(1)
    assert duplicate.value.result is None
    with pytest.raises(ResultUnavailable):
        returning(1)


def test_the_key_of_a_killed_process_is_free_after_its_lease(
    app: Celery, store: Any, redis_url: str, effects: Effects, tmp_path: Path
) -> None:
    """S-I5: not after its ttl."""
    script = tmp_path / "holder.py"
    script.write_text(
        "import sys, time\n"
        "from celery import Celery\n"
        "from celery_idem import idempotent\n"
        "app = Celery('holder', broker=sys.argv[1])\n"
        "app.conf.idem = {'lease_s': 1}\n"
        "with idempotent('killed', ttl=86400):\n"
        "    print('inside', flush=True)\n"
        "    time.sleep(120)\n"
    )
    holder = subprocess.Popen(
        guarded([sys.executable, str(script), redis_url]),
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"inside\n"
        with pytest.raises(InProgress), idempotent("killed", ttl=60, app=app):
            pytest.fail("two inside")
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()

    def entered() -> int:
        try:
            with idempotent("killed", ttl=60, app=app) as claim:
                return int(claim.crashes)
        except InProgress:
            return 0

    assert wait_until(entered, 30, "the end of the dead holder's lease") == 1
