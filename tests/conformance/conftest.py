"""Every test of this folder runs once per store of ``registry.CASES``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_idem.stores.base import Store
from tests.conformance.registry import Case, HandClock, ServerClock, Subject, params


@pytest.fixture(params=params())
def case(request: pytest.FixtureRequest) -> Case:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def subject(case: Case, request: pytest.FixtureRequest) -> Iterator[Subject]:
    with case.open(request) as subject:
        yield subject


@pytest.fixture
def store(subject: Subject) -> Store:
    return subject.store


@pytest.fixture
def clock(subject: Subject) -> HandClock | ServerClock:
    return subject.clock
