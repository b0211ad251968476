"""The apps of these tests have the tasks that are written here, and no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.apps import no_shared_tasks


@pytest.fixture(autouse=True)
def _no_shared_tasks() -> Iterator[None]:
    with no_shared_tasks():
        yield
