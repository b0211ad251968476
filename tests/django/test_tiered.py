"""Redis before the database (S-I7): faster while it is there, not wrong while it is not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_idem.core.errors import StoreUnavailable
from celery_idem.core.record import Claimed, Done
from celery_idem.django.store import DjangoStore
from celery_idem.stores.tiered import REST_S, DoneCache, TieredStore
from tests.conformance.asking import KEY, OTHER_RESULT, RESULT, ask, take
from tests.django import databases
from tests.django.databases import POSTGRES
from tests.support.services import POSTGRES_URL

pytestmark = pytest.mark.parametrize("database", [POSTGRES], indirect=True)


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tiered(
    database: str, redis_server: Any, fault_proxy: Any, clock: Clock
) -> Iterator[Callable[[], TieredStore]]:
    """``tiered()``: a new store before this database, which is behind ``tiered.proxy``."""
    from urllib.parse import urlsplit

    parts = urlsplit(POSTGRES_URL)
    proxy = fault_proxy((parts.hostname or "127.0.0.1", parts.port or 5432))
    user = f"{parts.username}:{parts.password}" if parts.password else parts.username
    name = urlsplit(databases.url_of(database)).path
    alias = databases.alias_of(f"postgresql://{user}@127.0.0.1:{proxy.port}{name}")
    stores: list[TieredStore] = []

    def opened() -> TieredStore:
        client = redis.Redis(port=redis_server.port, retry=Retry(NoBackoff(), 0))
        stores.append(TieredStore(DjangoStore(alias, patience_s=0), DoneCache(client, clock=clock)))
        return stores[-1]

    opened.proxy = proxy  # type: ignore[attr-defined]
    yield opened
    proxy.heal()
    for store in stores:
        store.close()


def done(store: TieredStore, key: str = KEY, result: bytes = RESULT) -> None:
    assert store.complete(take(store, key), result)


def test_a_done_record_in_redis_needs_no_database(tiered: Any) -> None:
    done(tiered())

    tiered.proxy.cut()
    duplicate = tiered()

    outcome = duplicate.claim(ask(owner="worker-2", task_id="t2"))
    assert isinstance(outcome, Done)
    assert (outcome.result, outcome.task_id) == (RESULT, "t1")
    with pytest.raises(StoreUnavailable):
        duplicate.claim(ask("tests.pay:order:2"))


def test_a_flushed_redis_is_filled_again_by_the_first_duplicate(
    tiered: Any, redis_server: Any
) -> None:
    store = tiered()
    done(store)
    redis_server.client().flushall()

    first = store.claim(ask(owner="worker-2", task_id="t2"))
    tiered.proxy.cut()
    second = tiered().claim(ask(owner="worker-3", task_id="t3"))

    assert [type(it) for it in (first, second)] == [Done, Done]
    assert first.result == second.result == RESULT


def test_without_redis_everything_is_decided_by_the_database_and_said_once(
    tiered: Any, redis_server: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """ "Logged once, not a thousand times": for as long as it lasts."""
    store = tiered()
    done(store)
    redis_server.kill()

    with caplog.at_level(logging.WARNING, "celery_idem.stores.tiered"):
        assert isinstance(store.claim(ask(owner="worker-2", task_id="t2")), Done)
        for n in range(50):
            clock.now += REST_S / 10  # it is asked again now and then
            done(store, f"tests.pay:order:{n + 2}", OTHER_RESULT)
            assert isinstance(store.claim(ask(f"tests.pay:order:{n + 2}", "w", task_id="t9")), Done)
        assert [r.getMessage() for r in caplog.records] == [caplog.records[0].getMessage()]
        assert "slower, not wrong" in caplog.records[0].getMessage()

        redis_server.start()
        clock.now += REST_S
        done(store, "tests.pay:order:99")
    assert [r.getMessage() for r in caplog.records][1:] == ["done records are cached again"]
    tiered.proxy.cut()
    assert isinstance(tiered().claim(ask("tests.pay:order:99", "w", task_id="t9")), Done)


def test_what_redis_says_of_work_that_is_not_done_is_not_asked(
    tiered: Any, redis_server: Any
) -> None:
    """A claim, a crash, a step are the database's: a flush in their middle changes nothing."""
    store = tiered()
    claim = take(store)
    assert store.put_step(claim, "mail", b"sent")
    redis_server.client().flushall()

    assert store.crash(KEY, claim.owner) == 1
    again = store.claim(ask(owner="worker-2"))

    assert isinstance(again, Claimed)
    assert (again.crashes, again.steps) == (1, {"mail": b"sent"})
    assert again.claim.fence > claim.fence
