"""The schedule of faults: from the seed alone."""

from __future__ import annotations

from itertools import pairwise

import pytest

from chaos.schedule import AMOUNTS, CALM_END_S, CALM_START_S, LENGTHS_S, SERVER, Kind, plan
from chaos.stage import LEGS


@pytest.mark.parametrize("leg", LEGS.values(), ids=LEGS)
def test_the_same_seed_gives_the_same_schedule(leg):
    assert plan(7, 600, leg.kinds, 3) == plan(7, 600, leg.kinds, 3)


def test_another_seed_gives_another_schedule():
    kinds = LEGS["streams"].kinds

    assert plan(7, 600, kinds, 3) != plan(8, 600, kinds, 3)


@pytest.mark.parametrize("leg", LEGS.values(), ids=LEGS)
@pytest.mark.parametrize("seed", range(5))
def test_ten_minutes_meet_every_kind_of_fault_and_end_in_calm(leg, seed):
    faults = plan(seed, 600, leg.kinds, 3)

    assert {fault.kind for fault in faults} == set(leg.kinds)
    assert all(fault.at_s >= CALM_START_S for fault in faults)
    assert all(fault.ends_s <= 600 - CALM_END_S + 0.01 for fault in faults)


@pytest.mark.parametrize("seed", range(5))
def test_a_target_meets_one_fault_at_a_time(seed):
    faults = plan(seed, 600, LEGS["streams"].kinds, 3)

    for target in (SERVER, 0, 1, 2):
        mine = [fault for fault in faults if fault.target == target]
        assert all(before.ends_s < after.at_s for before, after in pairwise(mine))


def test_every_kind_says_how_long_it_lasts():
    assert set(LENGTHS_S) == set(Kind)
    assert set(AMOUNTS) <= set(Kind)
