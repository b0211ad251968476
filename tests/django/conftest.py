"""Databases for these tests; tests/conformance uses them, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture(scope="session")
def django_databases() -> Iterator[Callable[[str], str]]:
    """``django_databases(alias)``: that database exists and is migrated until the session ends."""
    from tests.django.databases import made

    ready: set[str] = set()
    with ExitStack() as stack:

        def need(alias: str) -> str:
            if alias not in ready:
                stack.enter_context(made(alias))
                ready.add(alias)
            return alias

        yield need
