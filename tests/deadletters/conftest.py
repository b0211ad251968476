"""Every test that asks for ``store`` runs once per store of ``registry.CASES``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_idem.deadletters.base import LetterStore
from tests.deadletters.registry import Case, Subject, params


@pytest.fixture(params=params())
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    case: Case = request.param
    with case.open(request) as subject:
        yield subject


@pytest.fixture
def store(subject: Subject) -> LetterStore:
    return subject.store


@pytest.fixture
def clock(subject: Subject) -> Any:
    return subject.clock
