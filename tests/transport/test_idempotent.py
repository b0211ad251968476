"""Idempotent tasks on the transport: the claim and the broker's lease end what the other began."""

from __future__ import annotations

import json

import pytest

from tests.support.waiting import wait_until
from tests.transport.conftest import streams

APP = "tests.apps.idem"


@pytest.fixture
def idem_app(load_app, redis_server, effects):
    return load_app(
        APP,
        TEST_BROKER=streams(redis_server.url()),
        TEST_BACKEND=redis_server.url(1),
        TEST_IDEM=json.dumps({"lease_s": 3, "store": redis_server.url(2)}),
        TEST_CONF=json.dumps({"broker_transport_options": {"lease_s": 3}}),
    )


def test_an_orphan_ends_with_its_parent_and_its_job_is_done_once(
    idem_app, effects, start_worker, redis_server, tmp_path
):
    """C61: only the parent is killed; another worker takes the message over."""
    victim = start_worker(f"{APP}:app")
    gate = tmp_path / "gate"
    result = idem_app.gated.delay("orphan", str(gate))
    effects.wait_count("start:orphan", 1)
    other = start_worker(f"{APP}:app")

    victim.kill_parent()

    wait_until(lambda: not victim.members(), what="the end of the orphan")
    gate.touch()
    assert result.get(timeout=60) == f"orphan by {result.id}"
    assert effects.count("orphan") == 1
    assert effects.lines("orphan")[0]["pid"] in other.children()
    with redis_server.client() as client:
        wait_until(lambda: client.xlen("rs:{celery}:f") == 0, what="the ack")


def test_a_duplicate_gets_the_recorded_result_and_is_acked(
    idem_app, effects, start_worker, redis_server
):
    start_worker(f"{APP}:app", concurrency=2)
    sent = [idem_app.pay.delay("twice") for _ in range(4)]

    assert [result.get(timeout=60) for result in sent] == ["paid"] * 4

    assert effects.count("twice") == 1
    with redis_server.client() as client:
        wait_until(lambda: client.xlen("rs:{celery}:0") == 0, what="the acks")
