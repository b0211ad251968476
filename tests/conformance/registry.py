"""The stores that the suite runs over. How to add one: README.md beside this file."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_idem.stores.base import Store
from celery_idem.stores.memory import MemoryStore
from celery_idem.stores.redis.store import RedisStore
from tests.support.ports import free_port

#: how long a server's clock may stand still before a test gives up, in seconds
CLOCK_DEADLINE_S = 60.0


class HandClock:
    """The memory store's clock, turned by hand. Every look moves it on by a microsecond, as a
    real clock does between two calls."""

    def __init__(self) -> None:
        self._us = 1_750_000_000_000_000

    def now_us(self) -> int:
        self._us += 1
        return self._us

    def pass_ms(self, ms: int) -> None:
        self._us += ms * 1000


class ServerClock:
    """A server's own clock, which is not turned but awaited."""

    def __init__(self, read_ms: Callable[[], int]) -> None:
        self._read_ms = read_ms

    def pass_ms(self, ms: int) -> None:
        """Return when the server's clock has moved on by so much. Asks it again and again."""
        gives_up = time.monotonic() + CLOCK_DEADLINE_S
        end_ms = self._read_ms() + ms + 1
        while self._read_ms() < end_ms:
            assert time.monotonic() < gives_up, "the server's clock stands still"


@dataclass(frozen=True)
class Subject:
    """A store under test."""

    store: Store
    clock: HandClock | ServerClock
    another: Callable[[], Store]  #: a second store over the same records, as another process has


@dataclass(frozen=True)
class Case:
    """How the suite gets a store: ``open`` is entered once a test, and starts without records."""

    name: str
    open: Callable[[pytest.FixtureRequest], AbstractContextManager[Subject]]
    #: a store whose server can't be reached, with no patience; None where there is no server
    unreachable: Callable[[], Store] | None = None
    marks: tuple[pytest.MarkDecorator, ...] = ()


@contextmanager
def _memory(request: pytest.FixtureRequest) -> Iterator[Subject]:
    clock = HandClock()
    store = MemoryStore(clock.now_us)
    yield Subject(store, clock, lambda: store)


@contextmanager
def _redis(request: pytest.FixtureRequest) -> Iterator[Subject]:
    url = request.getfixturevalue("redis_session_server").url()
    prefix = f"conf-{uuid.uuid4().hex[:12]}"
    opened: list[RedisStore] = []

    def another() -> RedisStore:
        opened.append(RedisStore.from_url(url, prefix=prefix))
        return opened[-1]

    store = another()

    def now_ms() -> int:
        seconds, micros = store.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    try:
        yield Subject(store, ServerClock(now_ms), another)
    finally:
        for each in opened:
            each.close()


def _redis_unreachable() -> Store:
    return RedisStore.from_url(f"redis://127.0.0.1:{free_port()}/0", patience_s=0)


def _django(alias: str) -> Callable[[pytest.FixtureRequest], AbstractContextManager[Subject]]:
    """The store on the ORM, on a database that the session made, emptied."""

    @contextmanager
    def opened(request: pytest.FixtureRequest) -> Iterator[Subject]:
        request.getfixturevalue("django_databases")(alias)
        from celery_idem.django import rows
        from celery_idem.django.store import DjangoStore
        from tests.django.databases import emptied

        emptied(alias)
        stores = [DjangoStore(alias)]

        def another() -> Store:
            stores.append(DjangoStore(alias))
            return stores[-1]

        def now_ms() -> int:
            return stores[0]._connections.patiently(rows.clock_ms)

        try:
            yield Subject(stores[0], ServerClock(now_ms), another)
        finally:
            for each in stores:
                each.close()

    return opened


@contextmanager
def _tiered(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Redis before PostgreSQL."""
    from celery_idem.stores.tiered import DoneCache, TieredStore

    url = request.getfixturevalue("redis_session_server").url()
    prefix = f"conf-{uuid.uuid4().hex[:12]}"

    def before(truth: Any) -> TieredStore:
        return TieredStore(truth, DoneCache(redis.Redis.from_url(url), prefix=prefix))

    with _django("postgres")(request) as truth:
        yield Subject(before(truth.store), truth.clock, lambda: before(truth.another()))


def _django_unreachable(url: str) -> Callable[[], Store]:
    def unreachable() -> Store:
        from celery_idem.django.store import DjangoStore
        from tests.django.databases import alias_of

        return DjangoStore(alias_of(url.format(port=free_port())), patience_s=0)

    return unreachable


def _tiered_unreachable() -> Store:
    from celery_idem.stores.tiered import DoneCache, TieredStore

    truth: Any = _django_unreachable("postgresql://nobody@127.0.0.1:{port}/none")()
    client = redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0))
    return TieredStore(truth, DoneCache(client))


CASES: list[Case] = [
    Case("memory", _memory),
    Case("redis", _redis, unreachable=_redis_unreachable),
    Case(
        "sqlite",
        _django("sqlite"),
        unreachable=_django_unreachable("sqlite:////no/such/folder/records.sqlite3"),
    ),
    Case(
        "postgres",
        _django("postgres"),
        unreachable=_django_unreachable("postgresql://nobody@127.0.0.1:{port}/none"),
        marks=(pytest.mark.postgres,),
    ),
    Case(
        "tiered",
        _tiered,
        unreachable=_tiered_unreachable,
        marks=(pytest.mark.postgres,),
    ),
    Case(
        "mariadb",
        _django("mariadb"),
        unreachable=_django_unreachable("mysql://nobody@127.0.0.1:{port}/none"),
        marks=(pytest.mark.mariadb,),
    ),
]


def params() -> list[object]:
    """The cases as parameters of a fixture."""
    return [pytest.param(case, id=case.name, marks=case.marks) for case in CASES]
