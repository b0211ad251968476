"""C15: nothing is lost when workers are killed at any moment; the same harness on the stock broker.

Long runs: ``python -m tests.transport.killing``.
"""

from __future__ import annotations

import pytest

from tests.transport.killing import run


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    for name in ("TEST_EFFECTS", "TEST_BROKER", "TEST_OPTIONS", "TEST_CONF", "TEST_STORE"):
        monkeypatch.setenv(name, "")  # what the harness sets is taken back
    monkeypatch.delenv("TEST_STORE")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_killed_and_frozen_workers_lose_nothing(tmp_path):
    counts = run("streams", 8, 3, tmp_path)

    assert {kind: count.lost for kind, count in counts.items()} == {"under load": 0, "frozen": 0}
    assert counts["under load"].kills == 8


@pytest.mark.slow
def test_the_same_harness_sees_the_stock_broker_lose_messages(tmp_path):
    """Or the harness is wrong. A frozen worker's BRPOP has been handed the message."""
    counts = run("stock", 0, 2, tmp_path)

    assert counts["frozen"].lost == 2
