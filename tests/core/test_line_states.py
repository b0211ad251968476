"""What a waiting line says of itself after every change: by that is started and fetched."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from celery_idem.core.errors import ConfigError
from celery_idem.core.line import Line, kept_free
from celery_idem.core.order import DeadlineOrder, Lane, StrictOrder, WeightedOrder, parse_lanes

LANES = parse_lanes({"critical": 10, "normal": 5, "low": 1})
RESERVED = parse_lanes({"critical": {"reserve": 2}, "normal": {"reserve": 1}, "low": 1})
DEADLINES = parse_lanes({"critical": {"deadline": 2}, "low": {"deadline": 600}})


def strict(lanes=LANES, slots: int = 4, **options: bool) -> Line[int]:  # type: ignore[no-untyped-def]
    return Line(lanes, StrictOrder(lanes), slots=slots, **options)


def weighted(lanes=LANES, slots: int = 4, **options: bool) -> Line[int]:  # type: ignore[no-untyped-def]
    return Line(lanes, WeightedOrder(lanes), slots=slots, **options)


def credits(line: Line[int]) -> dict[str, float]:
    assert isinstance(line.order, WeightedOrder)
    return line.order.credits()


def test_an_empty_line_has_nothing_waiting_running_or_started() -> None:
    line = strict()

    assert (line.count, line.waiting(), line.waiting("low"), line.waiting("gone")) == (0, 0, 0, 0)
    assert line.running == line.started == {"critical": 0, "normal": 0, "low": 0}
    assert (line.paused, line.version, line.slots, line.restricted) == ({}, 0, 4, False)
    assert line.next(0.0) is None
    assert line.first("low") is None
    assert line.first("gone") is None
    assert line.fetchable() == {"critical", "normal", "low"}


def test_what_waits_runs_and_was_started_is_counted_lane_by_lane() -> None:
    line = strict(slots=3)
    for number in (1, 2, 3):
        line.add("low", number)
    line.add("critical", 4)
    assert (line.count, line.waiting("low"), line.waiting("critical")) == (4, 3, 1)
    assert (line.first("low"), line.first("critical")) == (1, 4)

    assert [line.next(0.0) for _ in range(4)] == [("critical", 4), ("low", 1), ("low", 2), None]

    assert line.running == line.started == {"critical": 1, "normal": 0, "low": 2}
    assert (line.count, line.waiting("low"), line.first("low")) == (1, 1, 3)
    line.finished("low", 1.0)
    assert line.next(0.0) == ("low", 3)
    line.finished("low", 1.0)
    line.finished("low", 1.0)
    assert line.running == {"critical": 1, "normal": 0, "low": 0}
    assert line.started == {"critical": 1, "normal": 0, "low": 3}
    assert line.count == 0


def test_every_end_frees_one_process() -> None:
    line = strict(slots=2)
    for number in range(6):
        line.add("low", number)
    line.next(0.0)
    assert line.has_room("low")
    line.next(0.0)
    assert not line.has_room("low")
    assert line.fetchable() == set()

    line.finished("low", 1.0)
    assert [line.next(0.0), line.next(0.0)] == [("low", 2), None]
    line.finished("low", 1.0)
    line.finished("low", 1.0)

    assert [line.next(0.0), line.next(0.0), line.next(0.0)] == [("low", 3), ("low", 4), None]


def test_an_end_that_nothing_began_frees_no_process() -> None:
    line = strict(slots=1)
    line.add("low", 1)
    line.add("low", 2)
    line.next(0.0)

    line.finished("critical", 1.0)
    line.finished("gone", 1.0)

    assert line.next(0.0) is None
    assert line.running == {"critical": 0, "normal": 0, "low": 1}


def changes(line: Line[int]) -> list[Callable[[], object]]:
    return [
        lambda: line.add("low", 1),
        lambda: line.add("low", 2),
        lambda: line.admit("celery"),
        lambda: line.admit(Lane("bulk")),
        lambda: line.next(0.0),
        lambda: line.next(0.0),
        lambda: line.finished("low", 0.1),
        lambda: line.finished("low", 0.1),
        lambda: line.pause("low"),
        lambda: line.pause("critical"),
        lambda: line.resume("low"),
        lambda: line.resume("critical"),
        lambda: line.reweigh("low", 2),
        lambda: line.reweigh("low", 3),
        lambda: line.drain(),
        lambda: line.drain("low"),
        lambda: setattr(line, "slots", 5),
        lambda: setattr(line, "slots", 6),
    ]


def test_whatever_may_change_who_starts_is_seen_by_the_version() -> None:
    line = strict()

    for change in changes(line):
        before = line.version
        change()
        assert line.version > before

    before = line.version
    line.slots = 6
    line.admit("low")
    assert line.version == before


# -- lanes that were not known


def test_a_queue_that_is_no_lane_is_known_from_its_first_message_on() -> None:
    line = weighted()

    line.add("celery", 7)

    assert line.lanes == (*LANES, Lane("celery", 1.0, "celery"))
    assert line.running["celery"] == line.started["celery"] == 0
    assert set(credits(line)) == {"critical", "normal", "low", "celery"}
    assert line.next(0.0) == ("celery", 7)
    assert line.fetchable() == {"critical", "normal", "low", "celery"}
    assert not line.restricted


@pytest.mark.parametrize(("reserve", "restricted"), [(0, False), (1, True)])
def test_a_lane_that_comes_with_a_reserve_restricts(reserve: int, restricted: bool) -> None:
    line = strict()

    line.admit(Lane("bulk", reserve=reserve))

    assert line.restricted is restricted
    assert line.lanes[-1] == Lane("bulk", reserve=reserve)
    assert line.running["bulk"] == line.waiting("bulk") == 0
    line.add("bulk", 1)
    assert line.lanes[-1] == Lane("bulk", reserve=reserve)


def test_reserves_hold_when_a_lane_without_one_comes_or_is_reweighed() -> None:
    line = strict(RESERVED)

    line.admit("celery")
    line.reweigh("low", 3.0)

    assert line.restricted
    assert line.lanes[2] == Lane("low", 3.0, "low")


def test_by_deadline_a_queue_that_is_no_lane_has_the_longest() -> None:
    line: Line[int] = Line(DEADLINES, DeadlineOrder(DEADLINES), slots=1)
    none: Line[int] = Line([], DeadlineOrder([]), slots=1)

    line.admit("celery")
    none.admit("celery")

    assert line.lanes[-1] == Lane("celery", 1.0, "celery", deadline_s=600.0)
    assert none.lanes == (Lane("celery", 1.0, "celery", deadline_s=math.inf),)


def test_by_deadline_what_starts_is_chosen_by_the_time_that_it_is() -> None:
    line: Line[int] = Line(DEADLINES, DeadlineOrder(DEADLINES), slots=3)
    line.add("low", 1)
    line.next(1000.0)  # nothing of critical waited at 1000
    line.order.head("low", 401.0)  # due at 1001
    line.add("critical", 2)
    line.add("low", 3)

    assert line.next(1000.0) == ("low", 3)


# -- charges


def test_of_a_broker_that_pushes_every_start_is_charged() -> None:
    line = weighted()
    line.add("low", 1)

    line.next(0.0)

    assert credits(line) == {"critical": 0.0, "normal": 0.0, "low": 0.0}  # the others had nothing
    line.add("low", 2)
    line.add("critical", 3)
    line.next(0.0)
    line.next(0.0)
    assert credits(line)["critical"] == pytest.approx(10 / 11 - 1)


def test_what_was_fetched_by_choice_is_not_charged_again() -> None:
    line = weighted(fetched=True)
    for lane in ("low", "critical"):
        line.add(lane, 1)

    assert [line.next(0.0), line.next(0.0)] == [("critical", 1), ("low", 1)]

    assert set(credits(line).values()) == {0.0}


def test_the_time_of_a_job_is_told_to_the_order() -> None:
    lanes = parse_lanes({"a": 1, "b": 1})
    line: Line[int] = Line(lanes, WeightedOrder(lanes, charge="seconds"), slots=2)
    line.add("a", 1)
    line.add("b", 2)
    line.next(0.0)

    line.finished("a", 3.0)

    assert credits(line) == {"a": -1.5, "b": 1.5}


# -- pauses and drains


def test_a_pause_keeps_its_last_reason_until_it_ends() -> None:
    line = strict()

    line.pause("low")
    assert line.paused == {"low": ""}
    line.pause("low", "a flood")
    assert line.paused == {"low": "a flood"}
    assert line.restricted
    assert not line.has_room("low")
    assert line.has_room("critical")
    line.resume("critical")
    line.resume("low")

    assert line.paused == {}
    assert line.has_room("low")
    assert not line.restricted


@pytest.mark.parametrize("change", ["pause", "resume"])
def test_of_an_unknown_lane_the_known_ones_are_named(change: str) -> None:
    with pytest.raises(ConfigError) as refused:
        getattr(strict(), change)("bulk")

    assert str(refused.value) == "idem: no lane 'bulk' here; known are critical, normal, low"


def test_one_lane_or_all_are_drained_and_the_others_still_counted() -> None:
    line = strict()
    for number, lane in enumerate(("low", "critical", "low", "normal")):
        line.add(lane, number)

    assert line.drain("low") == [0, 2]
    assert (line.count, line.waiting("low")) == (2, 0)
    assert line.drain() == [1, 3]
    assert (line.count, line.next(0.0)) == (0, None)


# -- reserves


@pytest.mark.parametrize(
    ("running", "lane", "slots", "kept"),
    [
        ({}, "critical", 8, 0),
        ({}, "normal", 8, 2),
        ({}, "low", 8, 3),
        ({"critical": 1}, "low", 8, 2),
        ({"critical": 5}, "low", 8, 1),  # more than its reserve gives nothing back to others
        ({"low": 5}, "low", 8, 3),
        ({}, "low", 3, 2),
        ({}, "low", 1, 0),
        ({}, "low", 0, 0),
        ({}, "celery", 8, 3),
    ],
)
def test_what_the_lanes_above_have_reserved_and_do_not_use_is_kept(
    running: dict[str, int], lane: str, slots: int, kept: int
) -> None:
    assert kept_free(RESERVED, running, lane, slots) == kept


def test_a_reserve_is_kept_while_jobs_start_and_end() -> None:
    line = strict(RESERVED, slots=4)
    for number in range(4):
        line.add("low", number)

    assert line.next(0.0) == ("low", 0)
    assert line.next(0.0) is None
    assert (line.has_room("low"), line.has_room("normal"), line.has_room("critical")) == (
        False,
        True,
        True,
    )
    assert line.fetchable() == {"critical", "normal"}
    line.slots = 1
    assert not line.has_room("critical")
    assert line.fetchable() == set()


def test_what_waits_and_may_start_is_before_what_could_be_fetched() -> None:
    line = strict(RESERVED, slots=4)
    line.add("low", 1)
    assert line.fetchable() == set()

    plain = strict()
    plain.add("low", 1)

    assert plain.fetchable() == set()
