"""A worker that was away for longer than its lease: it is told, and it harms nobody (S-V6, C60)."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until
from tests.visibility.conftest import APP, HOUR


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_ack_of_a_woken_worker_does_not_remove_the_delivery_of_another(
    pool, kept, effects, start_worker, redis_server, tmp_path
):
    app, gate = kept(TEST_OPTIONS=HOUR), tmp_path / "gate"
    zombie = start_worker(APP, pool=pool, env={"TEST_MARK": "zombie"})
    app.gated.delay("job", str(gate))
    effects.wait_count("job:start", 1)
    zombie.stop_tree()
    other = start_worker(APP, pool=pool, env={"TEST_MARK": "other"})
    effects.wait_count("job:start", 2)
    other.stop_tree()  # it must not be done before the zombie is

    zombie.cont_tree()
    zombie.wait_log("were given to other workers")
    gate.touch()
    effects.wait_count("job:end", 1)

    assert effects.lines("job:end")[0]["mark"] == "zombie"
    zombie.wait_log("acked after it had been given to another worker")
    with redis_server.client() as client:
        # on record, or back in its queue when the other was stopped for longer than its lease
        wait_until(
            lambda: client.hlen("unacked") + client.llen("celery") == 1, what="the other's delivery"
        )
    assert [(line["mark"], line["count"]) for line in effects.lines("lost")] == [("zombie", 1)]


@pytest.mark.slow
def test_a_woken_worker_goes_on_with_a_full_prefetch(kept, effects, start_worker, redis_server):
    app = kept(TEST_OPTIONS=HOUR)
    zombie = start_worker(APP, env={"TEST_MARK": "zombie"})
    for number in range(2):
        app.work.apply_async((f"n{number}", 5))
    effects.wait_count("n0:start", 1)
    zombie.stop_tree()
    start_worker(APP, queues=["another"])
    with redis_server.client() as client:
        wait_until(lambda: client.hlen("unacked") == 0, what="the take-over")

    zombie.cont_tree()
    for number in range(5):
        app.note.delay(f"after{number}")

    effects.wait_for(lambda it: all(it.count(f"after{n}") for n in range(5)), 60, "what follows")
    with redis_server.client() as client:
        wait_until(lambda: client.hlen("unacked") == 0, what="the end of all deliveries")
        assert client.llen("celery") == 0


def test_a_frozen_parent_whose_child_works_on_is_away_too(kept, effects, start_worker, tmp_path):
    app, gate = kept(TEST_OPTIONS=HOUR), tmp_path / "gate"
    zombie = start_worker(APP, env={"TEST_MARK": "zombie"})
    app.gated.delay("job", str(gate))
    effects.wait_count("job:start", 1)

    zombie.stop_parent()
    start_worker(APP, env={"TEST_MARK": "other"})
    effects.wait_count("job:start", 2)
    zombie.cont_parent()

    effects.wait_count("lost", 1)
    gate.touch()
    effects.wait_count("job:end", 2)
    assert zombie.returncode is None


def test_a_server_that_lost_its_data_is_a_loss_too(kept, effects, start_worker, redis_server):
    app = kept(TEST_OPTIONS=HOUR)
    worker = start_worker(APP)
    app.work.delay("job", 8)
    effects.wait_count("job:start", 1)

    with redis_server.client() as client:
        client.flushall()

    worker.wait_log("were given to other workers")
    app.work.delay("next", 0)
    effects.wait_count("next:end", 1, deadline_s=60)
