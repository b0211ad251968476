"""Messages of a dead worker come back in time; those of a living one never do (S-V1, S-V2, S-V5)."""

from __future__ import annotations

import pytest

APP = "tests.apps.kept:app"


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent", "eventlet"])
def test_work_of_a_killed_worker_starts_again_elsewhere(
    pool, redis_server, effects, load_app, start_worker
):  # C05, S-V2
    kept = load_app("tests.apps.kept", TEST_BROKER=redis_server.url())
    first = start_worker(APP, pool=pool)
    kept.work.delay("job", 0.5 if pool == "none" else 60)
    effects.wait_count("job:start", 1)
    start_worker(APP, pool=pool)

    first.kill_tree()

    effects.wait_count("job:start", 2)
    once, again = effects.lines("job:start")
    assert (once["redelivered"], again["redelivered"]) == (False, True)
