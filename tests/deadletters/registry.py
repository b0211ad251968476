"""The letter stores that the suite runs over. A new store is one more ``Case``."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest

from celery_idem.deadletters.base import LetterStore
from celery_idem.deadletters.memory import MemoryLetterStore
from celery_idem.deadletters.redis.store import RedisLetterStore
from tests.conformance.registry import ServerClock


class HandMs:
    """A clock in milliseconds, turned by hand."""

    def __init__(self) -> None:
        self.now = 1_750_000_000_000

    def now_ms(self) -> int:
        return self.now

    def pass_ms(self, ms: int) -> None:
        self.now += ms


@dataclass(frozen=True)
class Subject:
    """A letter store under test, and its clock."""

    store: LetterStore
    clock: HandMs | ServerClock


@dataclass(frozen=True)
class Case:
    """How the suite gets a store: ``open`` is entered once a test, and starts without letters."""

    name: str
    open: Callable[[pytest.FixtureRequest], AbstractContextManager[Subject]]
    marks: tuple[pytest.MarkDecorator, ...] = ()


@contextmanager
def _memory(request: pytest.FixtureRequest) -> Iterator[Subject]:
    clock = HandMs()
    yield Subject(MemoryLetterStore(clock.now_ms), clock)


@contextmanager
def _redis(request: pytest.FixtureRequest) -> Iterator[Subject]:
    url = request.getfixturevalue("redis_session_server").url()
    store = RedisLetterStore.from_url(url, prefix=f"conf-{uuid.uuid4().hex[:12]}")

    def now_ms() -> int:
        seconds, micros = store.client.time()  # type: ignore[misc]
        return int(seconds) * 1000 + int(micros) // 1000

    yield Subject(store, ServerClock(now_ms))
    store.close()


def _django(alias: str) -> Callable[[pytest.FixtureRequest], AbstractContextManager[Subject]]:
    """The store on the ORM, on a database that the session made, emptied."""

    @contextmanager
    def opened(request: pytest.FixtureRequest) -> Iterator[Subject]:
        request.getfixturevalue("django_databases")(alias)
        from celery_idem.django import rows
        from celery_idem.django.letters import DjangoLetterStore
        from tests.django.databases import emptied

        emptied(alias)
        store = DjangoLetterStore(alias)
        yield Subject(store, ServerClock(lambda: store._connections.patiently(rows.clock_ms)))
        store.close()

    return opened


CASES: list[Case] = [
    Case("memory", _memory),
    Case("redis", _redis),
    Case("sqlite", _django("sqlite")),
    Case("postgres", _django("postgres"), marks=(pytest.mark.postgres,)),
    Case("mariadb", _django("mariadb"), marks=(pytest.mark.mariadb,)),
]


def params() -> list[object]:
    """The cases as parameters of a fixture."""
    return [pytest.param(case, id=case.name, marks=case.marks) for case in CASES]
