"""S-P3 on real brokers: 10:5:1, nobody starves, unused shares go to the others."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.lanes.conftest import LaneRun
from tests.support.proxy import FaultProxy


def counts(lines: list[dict]) -> Counter[str]:  # type: ignore[type-arg]
    return Counter(line["key"] for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_three_backlogs_are_served_ten_five_one(lanes: LaneRun, workers: int) -> None:
    lanes.configure()
    for lane, count in (("critical", 1300), ("normal", 650), ("low", 300)):
        lanes.send(lane, count, busy_s=0.002)

    started = [lanes.worker(wait=False) for _ in range(workers)]
    for worker in started:
        worker.wait_ready()
    runs = lanes.first(1600)

    served = counts(runs)
    assert abs(served["critical"] - 1000) <= 16  # 1 % of the runs
    assert abs(served["normal"] - 500) <= 16
    assert abs(served["low"] - 100) <= 16
    first_low = [line["key"] for line in runs].index("low")
    # within a round of each worker; two processes may note their starts the other way round
    assert first_low <= 16 * workers + 2 * workers


def test_a_lane_alone_gets_everything_and_the_others_join_at_once(lanes: LaneRun) -> None:
    lanes.configure()
    lanes.send("low", 60, busy_s=0.02)
    lanes.worker()
    lanes.effects.wait_count("low", 20)

    lanes.send("critical", 40, busy_s=0.02)
    lanes.effects.wait_count("critical", 40)

    # two processes were busy with low, and the rest of the backlog waited for its turns
    lows_meanwhile = lanes.effects.count("low") - 20
    lanes.effects.wait_count("low", 60)
    assert lows_meanwhile < 40


def test_c28_a_lane_above_that_is_never_empty_does_not_starve_the_one_below(
    lanes: LaneRun,
) -> None:
    lanes.configure({"critical": 4, "low": 1})
    lanes.send("critical", 500, busy_s=0.005)
    lanes.send("low", 200, busy_s=0.005)

    lanes.worker("critical", "low", concurrency=1)
    runs = [line["key"] for line in lanes.first(400)]

    assert abs(runs.count("low") - 80) <= 4  # 20 %
    places = [-1] + [i for i, name in enumerate(runs) if name == "low"]
    assert max(b - a for a, b in itertools.pairwise(places)) <= 7  # its turn is 5


def test_strict_order_serves_by_rank_and_starves(lanes: LaneRun) -> None:
    lanes.configure(lane_order="strict")
    lanes.send("low", 30, busy_s=0.02)
    lanes.send("critical", 100, busy_s=0.02)

    lanes.worker("low", "critical", concurrency=1)  # C26: the order of -Q does not matter
    runs = [line["key"] for line in lanes.first(130)]

    # RabbitMQ pushes: what arrived before the first critical message may have started
    early = runs[: runs.index("critical")]
    assert len(early) <= (0 if lanes.broker == "redis" else 3)
    assert runs == early + ["critical"] * 100 + ["low"] * (30 - len(early))


@pytest.mark.rabbitmq
@pytest.mark.parametrize("broker", ["rabbitmq", "quorum"])
def test_a_broker_that_is_far_away_has_the_next_message_here_in_time(
    lanes: LaneRun, proxy: FaultProxy
) -> None:
    lanes.configure(lane_order="strict")
    lanes.send("low", 30, busy_s=0.02)
    lanes.send("critical", 120, busy_s=0.02)

    lanes.worker("low", "critical", concurrency=1)
    proxy.set(latency_s=0.03)  # 60 ms from an ack to the next message
    runs = [line["key"] for line in lanes.first(150)]

    first = runs.index("critical")
    assert runs[first : first + 120] == ["critical"] * 120


@pytest.mark.slow
def test_charged_in_seconds_long_jobs_get_no_more_time(lanes: LaneRun) -> None:
    lanes.configure(charge="seconds")
    for lane, count, busy_s in (
        ("critical", 2200, 0.02),
        ("normal", 1200, 0.02),
        ("low", 60, 0.4),
    ):
        lanes.send(lane, count, busy_s)

    lanes.worker(concurrency=4)
    runs = lanes.first(2000)

    seconds: Counter[str] = Counter()
    for line in runs:
        seconds[line["key"]] += line["busy_s"]
    whole = sum(seconds.values())
    assert abs(seconds["critical"] / whole - 10 / 16) < 0.03
    assert abs(seconds["normal"] / whole - 5 / 16) < 0.03
    assert abs(seconds["low"] / whole - 1 / 16) < 0.03


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet", "solo"])
def test_every_pool_serves_by_weight_on_redis(lanes: LaneRun, pool: str) -> None:
    lanes.configure()
    for lane in ("critical", "normal", "low"):
        lanes.send(lane, 220)

    lanes.worker(concurrency=1 if pool == "solo" else 2, pool=pool)
    served = counts(lanes.first(320))

    assert abs(served["critical"] - 200) <= 3
    assert abs(served["normal"] - 100) <= 3
    assert abs(served["low"] - 20) <= 3


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
@pytest.mark.rabbitmq
@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet", "solo"])
def test_every_pool_serves_by_weight_on_rabbitmq(lanes: LaneRun, pool: str) -> None:
    # with heartbeats on, Celery 5.7's green pools read one message every 0.1 s, ours or stock
    lanes.configure(conf={"broker_heartbeat": 0})
    for lane in ("critical", "normal", "low"):
        lanes.send(lane, 220, busy_s=0.002)

    lanes.worker(concurrency=1 if pool == "solo" else 2, pool=pool)
    served = counts(lanes.first(320))

    assert abs(served["critical"] - 200) <= 8
    assert abs(served["normal"] - 100) <= 8
    assert abs(served["low"] - 20) <= 8


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_c26_the_order_is_the_same_at_every_start(lanes: LaneRun) -> None:
    names = [f"q{number}" for number in range(10)]
    lanes.configure(dict.fromkeys(names, 1), lane_order="strict")

    for seed in ("1", "2", "3"):
        before = len(lanes.effects.lines())
        for name in names:
            lanes.send(name, 3)
        worker = lanes.worker(*reversed(names), concurrency=1, env={"PYTHONHASHSEED": seed})
        runs = [line["key"] for line in lanes.first(before + 30)[before:]]
        worker.term()
        worker.wait_exit()

        assert runs == [name for name in names for _ in range(3)]


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.rabbitmq
def test_c27_the_lane_comes_first_and_the_message_priority_second(lanes: LaneRun) -> None:
    lanes.configure(lane_order="strict")
    for lane in ("low", "critical"):
        for priority in (9, None, 5, 0):  # on Redis 0 is served first, and none counts as 0
            lanes.send(lane, 3, busy_s=0.02, priority=priority)

    lanes.worker(concurrency=1)
    runs = [line["key"] for line in lanes.first(24)]

    # the number means opposite things on the two brokers, the lane the same; RabbitMQ pushes, so
    # what arrived before the first critical message may have started
    early = runs[: runs.index("critical")]
    assert len(early) <= (0 if lanes.broker == "redis" else 3)
    assert runs == early + ["critical"] * 12 + ["low"] * (12 - len(early))
