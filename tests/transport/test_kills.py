"""C15: nothing is lost when workers are killed at any moment; the same harness on the stock broker.

Long runs: ``python -m tests.transport.killing``.
"""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until
from tests.transport.conftest import APP
from tests.transport.killing import run


@pytest.fixture
def own_environment(monkeypatch):
    """What the harness sets is taken back."""
    for name in ("TEST_EFFECTS", "TEST_BROKER", "TEST_OPTIONS", "TEST_CONF", "TEST_STORE"):
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("TEST_STORE")


@pytest.mark.slow
@pytest.mark.usefixtures("own_environment")
@pytest.mark.timeout(240)
def test_killed_and_frozen_workers_lose_nothing(tmp_path):
    counts = run("streams", 8, 3, tmp_path)

    assert {kind: count.lost for kind, count in counts.items()} == {"under load": 0, "frozen": 0}
    assert counts["under load"].kills == 8


@pytest.mark.slow
@pytest.mark.usefixtures("own_environment")
def test_the_same_harness_sees_the_stock_broker_lose_messages(tmp_path):
    """Or the harness is wrong. A frozen worker's BRPOP has been handed the message."""
    counts = run("stock", 0, 2, tmp_path)

    assert counts["frozen"].lost == 2


def test_a_message_that_comes_while_a_worker_is_frozen_is_run_by_the_next(
    load_streams_app, effects, start_worker, redis_server
):
    """C15: stock's server hands it to the frozen worker's BRPOP, and it is gone."""
    app = load_streams_app()
    frozen = start_worker(f"{APP}:app")
    app.effect.delay("before")
    effects.wait_count("before", 1)
    with redis_server.client() as client:
        wait_until(lambda: client.xlen("rs:{celery}:0") == 0, what="the ack")

    frozen.stop_tree()
    for number in range(3):
        app.effect.delay(f"k{number}")
    frozen.kill_tree()
    start_worker(f"{APP}:app")

    effects.wait_for(lambda it: all(it.count(f"k{n}") for n in range(3)))
    assert sorted(effects.keys()) == ["before", "k0", "k1", "k2"]
