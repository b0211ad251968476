"""The waiting line: reserves, pauses, and who starts next."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from celery_idem.core.errors import ConfigError
from celery_idem.core.line import Line, may_start
from celery_idem.core.order import Lane, StrictOrder, WeightedOrder, parse_lanes

LANES = parse_lanes({"critical": 10, "normal": 5, "low": 1})
RESERVED = parse_lanes({"critical": {"weight": 10, "reserve": 1}, "normal": 5, "low": 1})


def make_line(lanes=LANES, slots: int = 4, **options: bool) -> Line[int]:  # type: ignore[no-untyped-def]
    return Line(lanes, WeightedOrder(lanes), slots=slots, **options)


def start_all(line: Line[int]) -> list[str]:
    started = []
    while (chosen := line.next(0.0)) is not None:
        started.append(chosen[0])
    return started


@pytest.mark.parametrize(
    ("running", "lane", "may"),
    [
        ({}, "low", True),
        ({"low": 2}, "low", True),
        ({"low": 3}, "low", False),
        ({"low": 3}, "normal", False),
        ({"low": 3}, "critical", True),
        ({"low": 2, "normal": 1}, "low", False),
        ({"low": 2, "critical": 1}, "low", True),  # critical occupies its own reserve
        ({"low": 3, "critical": 1}, "critical", False),  # full
        ({"critical": 4}, "critical", False),
    ],
)
def test_a_reserve_is_kept_from_the_lanes_below(running: dict, lane: str, may: bool) -> None:  # type: ignore[type-arg]
    assert may_start(RESERVED, running, lane, slots=4) is may


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_reserves_leave_the_lower_lanes_at_least_one_process(slots: int) -> None:
    lanes = parse_lanes({"critical": {"reserve": 5}, "low": 1})

    assert may_start(lanes, {}, "low", slots)


def starts_and_ends(lanes: Sequence[Lane], slots: int) -> Iterator[dict[str, int]]:
    """Every state of the pool that any sequence of starts and ends can lead to."""
    names = [lane.name for lane in lanes]
    seen: set[tuple[int, ...]] = set()
    todo = [(0,) * len(names)]
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        running = dict(zip(names, state, strict=True))
        yield running
        for place, name in enumerate(names):
            if may_start(lanes, running, name, slots):
                todo.append((*state[:place], state[place] + 1, *state[place + 1 :]))
            if state[place]:
                todo.append((*state[:place], state[place] - 1, *state[place + 1 :]))


@pytest.mark.parametrize("slots", range(1, 9))
def test_a_burst_below_never_takes_what_is_reserved_above(slots: int) -> None:
    for critical, normal, low in itertools.product(range(4), repeat=3):
        lanes = parse_lanes(
            {
                "critical": {"reserve": critical},
                "normal": {"reserve": normal},
                "low": {"reserve": low},
            }
        )
        for running in starts_and_ends(lanes, slots):
            assert sum(running.values()) <= slots
            assert running["low"] <= max(1, slots - critical - normal)
            assert running["low"] + running["normal"] <= max(1, slots - critical)


def test_a_paused_lane_is_not_started_and_joins_the_round_when_resumed() -> None:
    line = make_line(slots=1000)
    for number in range(320):
        for lane in ("critical", "low"):
            line.add(lane, number)
    line.pause("low")

    first = start_all(line)
    line.resume("low")
    rest = start_all(line)

    assert set(first) == {"critical"}
    assert rest == ["low"] * 320


def test_a_lane_that_was_held_back_does_not_catch_up() -> None:
    lanes = parse_lanes({"critical": 10, "low": 10})
    line: Line[int] = Line(lanes, WeightedOrder(lanes), slots=10_000)
    line.pause("low")
    for number in range(1_000):
        line.add("critical", number)
        line.add("low", number)
    for _ in range(500):
        line.next(0.0)

    line.resume("low")
    first = [line.next(0.0)[0] for _ in range(20)]  # type: ignore[index]

    assert first.count("low") in (10, 11)


def test_waiting_messages_are_charged_when_they_start() -> None:
    line = make_line(slots=10_000)
    for number in range(1_000):
        for lane in ("critical", "normal", "low"):
            line.add(lane, number)

    started = [line.next(0.0)[0] for _ in range(160)]  # type: ignore[index]

    assert [started.count(lane.name) for lane in LANES] == [100, 50, 10]


def test_within_a_lane_the_first_is_first() -> None:
    line = make_line(slots=100)
    for number in range(10):
        line.add("low", number)

    assert [line.next(0.0)[1] for _ in range(10)] == list(range(10))  # type: ignore[index]


def test_nothing_is_fetched_while_a_message_waits_that_could_not_start() -> None:
    line = make_line(slots=1, fetched=True)
    line.add("low", 1)
    line.next(0.0)

    busy = line.fetchable()
    line.finished("low", 0.1)

    assert busy == set()
    assert line.fetchable() == {"critical", "normal", "low"}


def test_a_message_that_may_not_take_the_reserve_does_not_stop_the_fetching_of_others() -> None:
    line = make_line(RESERVED, slots=2, fetched=True)
    for number in range(2):
        line.add("low", number)
    start_all(line)

    assert line.running == {"critical": 0, "normal": 0, "low": 1}
    assert line.fetchable() == {"critical"}


def test_a_queue_that_is_no_lane_is_served_last_in_rank_with_weight_one() -> None:
    line = make_line(slots=100_000)
    for number in range(1_000):
        for lane in ("critical", "normal", "low", "celery"):
            line.add(lane, number)

    started = [line.next(0.0)[0] for _ in range(170)]  # type: ignore[index]

    assert [started.count(name) for name in ("critical", "normal", "low", "celery")] == [
        100,
        50,
        10,
        10,
    ]


def test_a_lane_that_is_consumed_later_takes_its_own_rank() -> None:
    critical, normal, low = RESERVED
    line: Line[int] = Line([low], StrictOrder([low]), slots=2, ranked=["critical", "normal", "low"])
    line.add("stray", 1)
    line.add("low", 1)

    line.admit(normal)
    line.admit(critical)
    line.add("normal", 1)

    assert [lane.name for lane in line.lanes] == ["critical", "normal", "low", "stray"]
    # the second process is kept for critical
    assert start_all(line) == ["normal"]


def test_pausing_an_unknown_lane_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no lane 'bulk' here"):
        make_line().pause("bulk")


def test_draining_takes_what_waits_and_charges_nobody() -> None:
    line = make_line()
    for number in range(3):
        line.add("low", number)

    assert line.drain("low") == [0, 1, 2]
    assert line.waiting() == 0
    assert isinstance(line.order, WeightedOrder)
    assert set(line.order.credits().values()) == {0.0}
