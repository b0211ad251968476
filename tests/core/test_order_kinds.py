"""Strict and deadline order, and what a lane may be."""

from __future__ import annotations

import pytest

from celery_idem.core.errors import ConfigError
from celery_idem.core.order import (
    DeadlineOrder,
    Lane,
    StrictOrder,
    make_order,
    parse_lanes,
    reweighed,
)

# -- strict and deadline
from tests.core.test_order import DEFAULT, fetches


def test_strict_serves_by_rank_as_written_and_starves() -> None:
    backlog = {"critical": 100, "normal": 50, "low": 5}

    taken = list(fetches(StrictOrder(DEFAULT), 155, backlog))

    assert taken == ["critical"] * 100 + ["normal"] * 50 + ["low"] * 5


def test_deadline_serves_the_lane_with_the_least_time_left() -> None:
    lanes = parse_lanes({"critical": {"deadline": 2}, "low": {"deadline": 600}})
    order = DeadlineOrder(lanes)

    order.head("critical", 1000.0)  # due at 1002
    order.head("low", 401.0)  # due at 1001
    late_first = order.preference(1000.0)
    order.head("low", 403.0)
    urgent_first = order.preference(1000.0)

    assert late_first == ["low", "critical"]
    assert urgent_first == ["critical", "low"]


def test_deadline_never_starves_a_lane() -> None:
    lanes = parse_lanes({"critical": {"deadline": 2}, "low": {"deadline": 60}})
    order = DeadlineOrder(lanes)
    order.head("low", 0.0)

    for now in range(200):
        order.head("critical", float(now))
        if order.preference(float(now))[0] == "low":
            break

    assert now == 59  # 60 s of its promise are over before 2 s of a fresh critical message


def test_deadline_takes_an_empty_lane_as_fresh() -> None:
    lanes = parse_lanes({"critical": {"deadline": 2}, "low": {"deadline": 600}})
    order = DeadlineOrder(lanes)

    assert order.preference(5000.0)[0] == "critical"
    order.took("low", ["critical"])
    order.head("low", 4300.0)  # 100 s late

    assert order.preference(5000.0) == ["low", "critical"]


def test_a_lane_of_which_no_message_is_known_comes_first() -> None:
    order = DeadlineOrder(parse_lanes({"critical": {"deadline": 2}, "low": {"deadline": 600}}))

    order.head("critical", 0.0)

    assert order.preference(0.0) == ["low", "critical"]


def test_what_is_known_of_a_lane_that_stays_is_kept() -> None:
    lanes = parse_lanes({"critical": {"deadline": 2}, "low": {"deadline": 600}})
    order = DeadlineOrder(lanes)
    order.head("critical", 1000.0)
    order.head("low", 401.0)

    order.set_lanes(lanes)

    assert order.preference(1000.0) == ["low", "critical"]


def test_deadline_without_a_promise_is_an_error() -> None:
    with pytest.raises(ConfigError, match="lane 'low' has none"):
        make_order("deadline", parse_lanes({"critical": {"deadline": 2}, "low": 1}))


def test_an_unknown_order_is_an_error() -> None:
    with pytest.raises(ConfigError, match="weighted, strict or deadline, not 'fair'"):
        make_order("fair", DEFAULT)


# -- settings


def test_a_lane_is_a_queue_of_its_name_unless_told_otherwise() -> None:
    lanes = parse_lanes({"critical": {"weight": 10, "reserve": 1, "deadline": 2}, "low": 1})

    assert lanes == (Lane("critical", 10.0, "critical", 1, 2.0), Lane("low", 1.0, "low"))


@pytest.mark.parametrize(
    ("given_lanes", "says"),
    [
        ({"low": 0}, "weight must be above 0, not 0; to stop a lane, pause it"),
        ({"low": -1}, "weight must be above 0"),
        ({"low": "heavy"}, "weight must be above 0, not 'heavy'"),
        ({"low": True}, "weight must be above 0, not True"),
        ({"low": float("inf")}, "weight must be above 0, not inf"),
        ({"low": 10**400}, r"weight must be from 1e-09 to 1e\+09"),
        ({"low": 1e-308, "high": 1e308}, r"weight must be from 1e-09 to 1e\+09"),
        ({"low": {"deadline": 1e308}}, r"deadline must be from 1e-09 to 1e\+09"),
        ({"low": {"wait": 1}}, "unknown key 'wait'; known are weight, queue, reserve, deadline"),
        ({"low": {"reserve": -1}}, "reserve must be a whole number of processes, not -1"),
        ({"low": {"reserve": 0.5}}, "reserve must be a whole number of processes, not 0.5"),
        ({"low": {"deadline": 0}}, "deadline must be above 0, not 0"),
        ({"low": {"queue": ""}}, "queue must be a non-empty text, not ''"),
        ({"": 1}, "name must be a non-empty text"),
        ({"a": {"queue": "q"}, "b": {"queue": "q"}}, "lanes 'a' and 'b' both use queue 'q'"),
        ({"a": 1, "b": {"queue": "a"}}, "lanes 'a' and 'b' both use queue 'a'"),
    ],
)
def test_a_wrong_lane_is_an_error_that_says_what(given_lanes: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        parse_lanes(given_lanes)


@pytest.mark.parametrize(
    ("given_lanes", "says"),
    [
        (
            {"low": 0},
            "idem: lane 'low': weight must be above 0, not 0; to stop a lane, pause it or leave "
            "its queue out of -Q",
        ),
        ({"low": {"deadline": 0}}, "idem: lane 'low': deadline must be above 0, not 0"),
        ({3: 1}, "idem: a lane's name must be a non-empty text, not 3"),
        (
            {"low": {"reserve": True}},
            "idem: lane 'low': reserve must be a whole number of processes, not True",
        ),
    ],
)
def test_an_error_names_the_lane_and_the_remedy(given_lanes: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError) as refused:
        parse_lanes(given_lanes)

    assert str(refused.value) == says


def test_a_lane_weighs_one_and_reserves_nothing_unless_told_otherwise() -> None:
    assert parse_lanes({"low": {}}) == (Lane("low", 1.0, "low", 0, None),)


def test_reweighing_changes_the_weight_of_one_lane() -> None:
    critical, normal, low = reweighed(DEFAULT, "low", 3)

    assert (critical, normal) == DEFAULT[:2]
    assert low == Lane("low", 3.0, "low")


def test_reweighing_names_the_lane_whose_weight_is_wrong() -> None:
    with pytest.raises(ConfigError, match=r"^idem: lane 'low': weight must be above 0, not 0; "):
        reweighed(DEFAULT, "low", 0)


def test_reweighing_an_unknown_lane_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no lane 'bulk' here; known are critical, normal, low"):
        reweighed(DEFAULT, "bulk", 3)
