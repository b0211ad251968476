"""A letter that is replayed to another lane leaves the old one behind, retries included."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.replay import How, replay
from tests.support.effects import Effects
from tests.support.waiting import wait_until
from tests.support.workers import Worker

LANES = ["critical", "normal", "low"]


@pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
@pytest.mark.parametrize(("lane", "ran_in"), [("", "low"), ("critical", "critical")])
def test_a_replay_runs_in_its_own_lane_or_in_the_one_that_is_named(
    broker: str,
    lane: str,
    ran_in: str,
    request: pytest.FixtureRequest,
    redis_url: str,
    effects: Effects,
    load_app: Callable[..., ModuleType],
    start_worker: Callable[..., Worker],
) -> None:
    url = redis_url if broker == "redis" else request.getfixturevalue("rabbitmq").url
    module = load_app("tests.apps.lanes_idem", TEST_BROKER=url, TEST_STORE=redis_url)
    module.refund.delay("a")
    start_worker("tests.apps.lanes_idem:app", queues=LANES, concurrency=1)
    letters = letters_of(module.app)
    wait_until(lambda: letters.count(Filter()) == 1, 60, "a letter")
    [letter] = letters.walk(Filter())

    replay(module.app, [letter], How(lane=lane))

    attempts = 1 if ran_in == "low" else 2  # it fails in low, and elsewhere once
    effects.wait_count("a", 1 + attempts, 60)
    assert [line["queue"] for line in effects.lines("a")] == ["low"] + [ran_in] * attempts
    assert letter.lane == "low"
