"""Jobs of the shop on real workers, real Redis and a real database."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from celery_idem.binding import store_of
from tests.django.databases import ALL, POSTGRES
from tests.django.shop.models import Effect, Order
from tests.support.effects import Effects
from tests.support.waiting import wait_until

DEADLINE_S = 90
APP = "tests.django.jobs:app"


class Undo(Exception):
    pass


@pytest.mark.parametrize("database", ALL, indirect=True)
@pytest.mark.parametrize("store", ["django", "tiered"])
def test_the_articles_job_fails_in_step_2_crashes_in_step_3_and_has_each_effect_once(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any, plan: Any, store: str
) -> None:
    """S-S2, with the records in the database."""
    jobs = shop(redis_url, store=store)
    plan("before:email:1", "fail 1")
    plan("before:stock:1", "kill 1")
    start_worker(APP, concurrency=2)

    result = jobs.order.delay("1").get(timeout=DEADLINE_S)

    assert result == ["order:1 done", "email:1 done", "stock:1 done"]
    assert Effect.objects.filter(name="order:1").count() == 2  # its two halves
    assert [effects.count(f"{name}:1") for name in ("email", "stock")] == [1, 1]
    record = store_of(jobs.app).get("shop.order:order:1")
    assert record is not None
    assert (record.runs, record.crashes, record.failures) == (3, 1, 1)
    assert set(record.steps) == {"order", "email", "stock"}


@pytest.mark.parametrize("database", [POSTGRES], indirect=True)
def test_a_flushed_redis_loses_no_guarantee_of_the_tiered_store(
    shop: Any, redis_server: Any, effects: Effects, start_worker: Any
) -> None:
    """FLUSHALL between a done run and its duplicate."""
    jobs = shop(redis_server.url(), store="tiered")
    start_worker(APP, concurrency=2)
    first = jobs.order.delay("1").get(timeout=DEADLINE_S)

    redis_server.client().flushall()
    second = jobs.order.delay("1").get(timeout=DEADLINE_S)

    assert second == first
    assert effects.count("email:1") == 1
    assert Effect.objects.filter(name="order:1").count() == 2


@pytest.mark.parametrize("database", ALL, indirect=True)
def test_a_stopped_worker_that_continues_cannot_write_its_row(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any, tmp_path: Any
) -> None:
    """C60: stopped for longer than its lease in the middle of its body, overtaken, continued. The
    last barrier is the row's own fence (S-V6): one write is accepted, and it is the second's."""
    jobs = shop(redis_url, store="django", lease_s=2)
    Order.objects.create(number="1")
    gate = tmp_path / "gate"
    first = start_worker(APP, hostname="first@h", concurrency=1)
    result = jobs.pays.delay("1", str(gate))
    effects.wait_count("start:1", 1)
    first.stop_tree()

    second = start_worker(APP, hostname="second@h", concurrency=1)
    copy = jobs.pays.delay("1", str(gate))
    effects.wait_count("start:1", 2, deadline_s=DEADLINE_S)
    gate.touch()
    second.wait_log("succeeded", deadline_s=DEADLINE_S)
    first.cont_tree()
    effects.wait_count("refused:1", 1, deadline_s=DEADLINE_S)

    old, new = [line["fence"] for line in effects.lines("start:1")]
    assert new > old
    [refused] = effects.lines("refused:1")
    assert refused["fence"] == old
    assert "somebody else has taken over this work" in refused["why"]
    # the message of the first comes back, and adopts what the second has made of it
    assert result.get(timeout=DEADLINE_S) == copy.get(timeout=DEADLINE_S) == f"paid by {new}"
    order = Order.objects.get(number="1")
    assert (order.status, order.fence) == (f"paid by {new}", new)
    record = store_of(jobs.app).get("shop.pays:pays:1")
    assert record is not None
    assert (record.runs, record.crashes, record.fence) == (2, 1, new)


@pytest.mark.parametrize("database", [POSTGRES], indirect=True)
def test_a_job_sent_in_a_transaction_starts_when_it_commits_and_its_id_is_known_before(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any
) -> None:
    """C66."""
    jobs = shop(redis_url)
    start_worker(APP, concurrency=1)

    with transaction.atomic():
        Order.objects.create(number="1")
        task_id = jobs.reads.delay_on_commit("1")
        assert store_of(jobs.app).get("shop.reads:reads:1") is None

    assert jobs.app.AsyncResult(task_id).get(timeout=DEADLINE_S) == "1"
    assert effects.count("reads:1") == 1


@pytest.mark.parametrize("database", [POSTGRES], indirect=True)
def test_a_job_sent_in_a_transaction_that_rolls_back_leaves_neither_run_nor_key(
    shop: Any, redis_url: str, effects: Effects, start_worker: Any
) -> None:
    """C66: the key is free for whoever comes later."""
    jobs = shop(redis_url)
    start_worker(APP, concurrency=1)

    def undone() -> None:
        with transaction.atomic():
            Order.objects.create(number="1")
            jobs.reads.apply_async_on_commit(("1",), task_id="never")
            raise Undo

    with pytest.raises(Undo):
        undone()
    assert store_of(jobs.app).get("shop.reads:reads:1") is None
    Order.objects.create(number="1")

    assert jobs.reads.delay("1").get(timeout=DEADLINE_S) == "1"
    assert effects.count("reads:1") == 1


@pytest.mark.parametrize("database", [POSTGRES], indirect=True)
def test_a_commit_whose_publish_fails_says_so_and_can_be_sent_again_from_its_row(
    shop: Any,
    redis_server: Any,
    effects: Effects,
    start_worker: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C68, as far as it is promised: a clear exception, and the row is there. Whoever looks for
    rows that are not done may send them again, and twice: their key makes it one run."""
    monkeypatch.setenv("TEST_BACKEND", "cache+memory://")  # one on Redis asks it 20 times
    jobs = shop(redis_server.url())
    redis_server.kill()

    def committed() -> None:
        with transaction.atomic():
            Order.objects.create(number="1")
            jobs.reads.apply_async_on_commit(("1",), retry=False)

    with pytest.raises(jobs.reads.OperationalError):
        committed()
    assert effects.count("reads:1") == 0

    redis_server.start()
    start_worker(APP, concurrency=2)
    for order in Order.objects.filter(status="new"):
        for _ in range(2):
            jobs.reads.delay(order.number)

    with redis_server.client() as client:
        wait_until(
            lambda: client.llen("celery") == 0 and client.hlen("unacked") == 0,
            DEADLINE_S,
            "both deliveries",
        )
    assert effects.count("reads:1") == 1
