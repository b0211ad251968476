"""Shared by the tests of the example."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder whose path is short."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
