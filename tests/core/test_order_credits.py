"""What each lane is owed after every fetch, worked out by hand: nothing else decides the order."""

from __future__ import annotations

import random

import pytest

from celery_idem.core.order import (
    MAX_OPEN,
    DeadlineOrder,
    Lane,
    StrictOrder,
    WeightedOrder,
    make_order,
)
from tests.core.test_order import DEFAULT, fetches

A, B, C = Lane("a", 1.0), Lane("b", 1.0), Lane("c", 2.0)


def owed(order: WeightedOrder) -> list[float]:
    return [round(credit, 9) for credit in order.credits().values()]


def after_one() -> WeightedOrder:
    """One message of ``a`` was taken: a quarter of it is owed to ``b``, half of it to ``c``."""
    order = WeightedOrder([A, B, C])
    order.took("a")
    assert owed(order) == [-0.75, 0.25, 0.5]
    return order


def test_a_heavier_lane_is_served_in_between_and_not_all_at_once() -> None:
    order = WeightedOrder([Lane("light", 1.0), Lane("heavy", 3.0)])

    assert list(fetches(order, 8)) == ["heavy", "heavy", "light", "heavy"] * 2


# -- empty lanes


def test_what_an_empty_lane_had_saved_goes_to_those_with_work_by_weight() -> None:
    order = after_one()

    order.took("b", ["c"])  # half of c's credit to each: -0.5, 0.5; then b is charged

    assert owed(order) == [0.0, 0.0, 0.0]


def test_what_several_empty_lanes_had_saved_is_added_up() -> None:
    order = after_one()

    order.took("a", ["b", "c"])

    assert owed(order) == [0.0, 0.0, 0.0]


def test_an_empty_lane_keeps_its_debt() -> None:
    order = after_one()

    order.took("b", ["a"])

    assert owed(order) == [-0.75, round(0.25 + 1 / 3 - 1, 9), round(0.5 + 2 / 3, 9)]


def test_a_lane_whose_last_message_was_taken_forfeits_nothing() -> None:
    order = WeightedOrder([A, B, C])
    order.took("c")
    assert owed(order) == [0.25, 0.25, -0.5]

    order.took("a", ["a"])

    assert owed(order) == [-0.5, 0.5, 0.0]


def test_lanes_that_nobody_knows_are_charged_for_nothing() -> None:
    order = WeightedOrder([A, B, C])

    order.took("gone")
    order.took("a", ["gone"])

    assert owed(order) == [-0.75, 0.25, 0.5]


# -- lanes that go


def test_the_credit_of_a_lane_that_goes_is_shared_by_weight() -> None:
    order = after_one()

    order.set_lanes([A, B])

    assert owed(order) == [-0.5, 0.5]


def test_the_debt_of_a_lane_that_goes_is_borne_by_those_who_have_it_coming() -> None:
    order = after_one()
    order.took("a")  # -1.5, 0.5, 1.0
    order.took("b", ["a"])  # -1.5, -0.1667, 1.6667

    order.set_lanes([B, C])

    assert owed(order) == [round(-1 / 6, 9), round(1 / 6, 9)]


def test_small_credits_bear_the_debt_of_a_lane_that_goes_too() -> None:
    order = after_one()

    order.set_lanes([B, C])

    assert owed(order) == [0.0, 0.0]


# -- in seconds


def in_seconds(*lanes: Lane) -> WeightedOrder:
    return WeightedOrder(lanes or [A, B], charge="seconds")


def test_a_job_is_charged_as_the_ones_before_it_and_corrected_when_it_ends() -> None:
    order = in_seconds()

    order.took("a")  # 1 s until one has ended
    assert owed(order) == [-0.5, 0.5]
    order.finished("a", 3.0)
    assert owed(order) == [-1.5, 1.5]
    order.took("a")  # 3 s
    assert owed(order) == [-3.0, 3.0]
    order.finished("a", 0.5)
    assert owed(order) == [-1.75, 1.75]
    order.took("a")  # 3 s and a fifth of the way to 0.5: 2.5 s
    assert owed(order) == [-3.0, 3.0]


def test_the_first_job_of_a_lane_is_charged_as_those_of_the_others_on_average() -> None:
    order = in_seconds()
    order.took("a")
    order.finished("a", 2.0)
    order.took("b")  # 2 s, as a's
    order.finished("b", 4.0)
    assert owed(order) == [1.0, -1.0]

    order.set_lanes([A, B, C])
    order.took("c")  # 3 s

    assert owed(order) == [1.75, -0.25, -1.5]
    order.took("a")  # 2 s, its own
    assert owed(order) == [0.25, 0.25, -0.5]


def test_a_job_that_was_given_back_says_nothing_of_the_next() -> None:
    order = in_seconds()
    order.took("a")
    order.finished("a", 0.0)

    order.took("a")

    assert owed(order) == [-0.5, 0.5]


def test_a_lane_that_has_come_since_has_no_part_in_the_correction() -> None:
    order = in_seconds()
    order.took("a")
    order.set_lanes([A, B, C])

    order.finished("a", 3.0)

    assert owed(order) == [-1.5, 1.5, 0.0]


def test_nothing_is_known_of_a_lane_that_was_gone() -> None:
    order = in_seconds()
    order.took("a")
    order.finished("a", 3.0)
    order.took("b")
    order.finished("b", 5.0)
    order.took("b")
    order.set_lanes([A])
    order.set_lanes([A, B])
    assert owed(order) == [0.0, 0.0]

    order.finished("b", 7.0)  # of a charge that was forgotten with its lane
    assert owed(order) == [0.0, 0.0]
    order.set_lanes([A])
    order.set_lanes([A, B])
    order.took("b")  # 3 s, as a's

    assert owed(order) == [1.5, -1.5]


def test_the_end_of_an_unknown_lanes_job_changes_nothing() -> None:
    order = in_seconds()

    order.finished("gone", 3.0)

    assert owed(order) == [0.0, 0.0]


def test_the_charges_of_what_is_never_run_are_forgotten_from_the_oldest_on() -> None:
    order = in_seconds()
    order.took("a", ["b"])  # charged among a alone
    for _ in range(MAX_OPEN):
        order.took("a")
    before = owed(order)

    order.finished("a", 3.0)

    assert owed(order) == [before[0] - 1.0, before[1] + 1.0]


def test_in_seconds_only_what_was_had_decides_and_at_first_the_weight() -> None:
    light, heavy = Lane("light", 1.0), Lane("heavy", 10.0)
    order = in_seconds(light, heavy)
    assert order.preference(0.0) == ["heavy", "light"]

    order.took("heavy")
    order.finished("heavy", 3.3)  # 0.3 s more than its share

    assert order.preference(0.0) == ["light", "heavy"]


# -- the phase to start at


@pytest.mark.parametrize("lanes", [DEFAULT, (Lane("a", 10.0), Lane("b", 4.0))])
def test_every_phase_is_one_of_the_first_round(lanes: tuple[Lane, ...]) -> None:
    plain = WeightedOrder(lanes)
    round_length = {3: 16, 2: 4}[len(lanes)]  # of the lightest: 16 / 1, and 14 / 4 rounded up
    phases = [owed(plain)]
    for _ in fetches(plain, round_length - 1):
        phases.append(owed(plain))

    begun = [owed(WeightedOrder(lanes, rng=random.Random(seed))) for seed in range(200)]

    assert all(one in begun for one in phases)
    assert all(one in phases for one in begun)


def test_in_seconds_every_worker_begins_at_the_beginning() -> None:
    order = WeightedOrder(DEFAULT, charge="seconds", rng=random.Random(3))

    assert set(order.credits().values()) == {0.0}


# -- by name


def test_an_order_is_made_by_its_name() -> None:
    deadlines = [Lane("a", deadline_s=1.0)]

    assert isinstance(make_order("strict", DEFAULT), StrictOrder)
    assert isinstance(make_order("deadline", deadlines), DeadlineOrder)
    by_messages = make_order("weighted", DEFAULT, rng=random.Random(3))
    assert isinstance(by_messages, WeightedOrder)
    assert owed(by_messages) == owed(WeightedOrder(DEFAULT, rng=random.Random(3)))
    assert set(owed(by_messages)) != {0.0}
    in_time = make_order("weighted", [A, B], charge="seconds")
    assert isinstance(in_time, WeightedOrder)
    in_time.took("a")
    in_time.finished("a", 3.0)
    assert owed(in_time) == [-1.5, 1.5]
