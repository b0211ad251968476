"""The list of the longest modules is not stale."""

from __future__ import annotations

from pathlib import Path

from tests.support.order import LONGEST

ROOT = Path(__file__).resolve().parents[2]


def test_every_module_that_is_begun_first_is_there() -> None:
    assert [module for module in LONGEST if not (ROOT / module).is_file()] == []
