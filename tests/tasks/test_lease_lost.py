"""``lease_lost`` is an alarm: it is silent as long as nobody else took the key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.effects import Effects

DEADLINE_S = 60


def test_a_slow_handler_after_the_body_is_no_lost_lease(
    redis_url: str, effects: Effects, load_app: Any, start_worker: Any
) -> None:
    tasks = load_app("tests.apps.slow_ends", TEST_BROKER=redis_url)
    worker = start_worker("tests.apps.slow_ends:app", concurrency=3)

    sent = {how: tasks.ends.delay(how, how) for how in ("success", "retry", "failure")}

    assert sent["success"].get(timeout=DEADLINE_S) == "success"
    duplicate = tasks.ends.delay("success", "success")
    assert sent["retry"].get(timeout=DEADLINE_S) == "retry"
    with pytest.raises(RuntimeError, match="as asked"):
        sent["failure"].get(timeout=DEADLINE_S)
    worker.wait_log(rf"{duplicate.id}\] succeeded")
    worker.term()
    worker.wait_exit()
    assert effects.lines("lease_lost") == []
    assert "lease lost" not in worker.log_text()
