"""What a task costs at the store, by the server's own count: 2 round trips, a duplicate 1."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.round_trips import counted, store, wait_acked
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.tasks.stage import Stage, open_stage

__all__ = ["counted", "store"]

DEADLINE_S = 60
COUNT = 20


@pytest.fixture(scope="module", params=["prefork", "threads"])
def stage(
    request: Any, tmp_path_factory: pytest.TempPathFactory, store: RedisServer
) -> Iterator[Stage]:
    with open_stage(
        tmp_path_factory,
        "tests.apps.idem",
        TEST_IDEM=f'{{"store": "{store.url()}", "lease_s": 60, "visibility_keeper": false}}',
    ) as stage:
        stage.start_worker(pool=request.param, concurrency=1)
        # a server loads a script at its first call: one more round trip, once
        stage.tasks.pay.apply_async(("warm-up",), link=stage.tasks.note.si())
        stage.effects.wait_count("note", 1, DEADLINE_S)
        stage.tasks.fails.delay("warm-up", times=1).get(timeout=DEADLINE_S)
        stage.tasks.always_fails.delay("warm-up").get(timeout=DEADLINE_S, propagate=False)
        wait_acked(stage.server, DEADLINE_S)
        yield stage
    with store.client() as client:
        client.flushall()


def test_a_task_costs_two_round_trips(stage: Stage, counted: Any) -> None:
    def act() -> None:
        sent = [stage.tasks.pay.delay(f"two-{n}") for n in range(COUNT)]
        for result in sent:
            result.get(timeout=DEADLINE_S)
        wait_acked(stage.server, DEADLINE_S)

    assert counted(act) == 2 * COUNT


def test_a_duplicate_costs_one(stage: Stage, counted: Any) -> None:
    stage.tasks.pay.delay("again").get(timeout=DEADLINE_S)
    wait_acked(stage.server, DEADLINE_S)

    def act() -> None:
        sent = [stage.tasks.pay.delay("again") for _ in range(COUNT)]
        for result in sent:
            result.get(timeout=DEADLINE_S)
        wait_acked(stage.server, DEADLINE_S)

    assert counted(act) == COUNT


def test_a_task_with_follow_ups_costs_three_for_they_are_noted(stage: Stage, counted: Any) -> None:
    """Claim, complete, settle; and the follow-up its own two."""

    def act() -> None:
        before = stage.effects.count("note")
        stage.tasks.pay.apply_async(("linked",), link=stage.tasks.note.si())
        stage.effects.wait_count("note", before + 1, DEADLINE_S)
        wait_acked(stage.server, DEADLINE_S)

    assert counted(act) == 3 + 2


def test_a_final_failure_costs_three_with_its_dead_letter(stage: Stage, counted: Any) -> None:
    """Claim, release, and the letter."""

    def act() -> None:
        with pytest.raises(RuntimeError):
            stage.tasks.always_fails.delay("f").get(timeout=DEADLINE_S)
        wait_acked(stage.server, DEADLINE_S)

    assert counted(act) == 3


def test_a_retry_costs_three_and_its_second_run_two(stage: Stage, counted: Any) -> None:
    """Claim, the look whether the key is still ours before the retry is published, release."""

    def act() -> None:
        stage.tasks.fails.delay("r", times=1).get(timeout=DEADLINE_S)
        wait_acked(stage.server, DEADLINE_S)

    assert counted(act) == 3 + 2


def test_scripts_are_all_that_is_sent(stage: Stage, store: RedisServer) -> None:
    """So the counts above have missed nothing: every command of every client, as it comes."""
    with store.client() as client, store.client() as other, client.monitor() as monitor:
        stage.tasks.pay.delay("watched").get(timeout=DEADLINE_S)
        wait_acked(stage.server, DEADLINE_S)
        other.echo("the end")
        sent = []
        for seen in monitor.listen():
            if "the end" in seen["command"]:
                break
            if seen["client_type"] != "lua":
                sent.append(seen["command"].split()[0])

    connecting, run_times = ("HELLO", "CLIENT", "SELECT"), ("HINCRBY", "EXPIRE")
    assert [n for n in sent if n not in connecting + run_times] == ["EVALSHA"] * 2


def test_run_times_travel_in_the_round_trips_that_a_task_makes_anyway(
    stage: Stage, store: RedisServer
) -> None:
    """S-V7: what the server reads from its clients, at a time, is two calls a task."""
    with store.client() as client:

        def reads() -> int:
            return int(client.info("stats")["total_reads_processed"])

        def kept() -> int:
            return int(client.info("commandstats").get("cmdstat_hincrby", {"calls": 0})["calls"])

        wait_until(lambda: run_one_and_count(stage, kept), DEADLINE_S, "run times that are due")

        def spent(turn: int) -> int:
            before = reads()
            for n in range(COUNT):
                stage.tasks.pay.delay(f"read-{turn}-{n}").get(timeout=DEADLINE_S)
            wait_acked(stage.server, DEADLINE_S)
            return reads() - before - 1  # the second question is one itself

        # a connection that is opened meanwhile says more, once
        assert min(map(spent, range(3))) == 2 * COUNT
        assert kept() > 0


def run_one_and_count(stage: Stage, kept: Callable[[], int]) -> bool:
    """Whether a run more made the store count run times: they go every few seconds."""
    before = kept()
    stage.tasks.pay.delay(f"one-{before}-{next(_numbers)}").get(timeout=DEADLINE_S)
    return kept() > before


_numbers = itertools.count()
