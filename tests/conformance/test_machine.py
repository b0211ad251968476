"""Random histories: every store does what the model does, and a broken one is found out."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.broken import broken_stores
from tests.conformance.machine import SideBySide
from tests.conformance.registry import HandClock, Subject

#: histories tried for each store; more of them with IDEM_HISTORIES=2000
HISTORIES = int(os.environ.get("IDEM_HISTORIES", "40"))

QUIET = settings(
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(0 if HISTORIES > 200 else 300)
def test_a_store_does_what_the_model_does(subject):
    run_state_machine_as_test(
        lambda: SideBySide(subject),
        settings=settings(QUIET, max_examples=HISTORIES, stateful_step_count=30),
    )


@pytest.mark.timeout(600)  # a search that only computes: minutes where others compute, too
@pytest.mark.parametrize("broken", list(broken_stores()), ids=lambda store: store.__name__)
def test_a_store_that_breaks_a_rule_is_found_out(broken):
    clock = HandClock()
    store = broken(clock.now_us)
    found_fast = settings(
        QUIET,
        derandomize=True,
        max_examples=2000,
        stateful_step_count=40,
        phases=[Phase.generate],
    )

    with pytest.raises(AssertionError, match=r"the store says|fence"):
        run_state_machine_as_test(
            lambda: SideBySide(Subject(store, clock, lambda: store)), settings=found_fast
        )
