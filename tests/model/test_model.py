"""Every interleaving up to a small bound keeps the promises, and a broken rule is refuted.

The larger bound: ``python -m model``; the refutations as they read: ``python -m model --broken``.
"""

from __future__ import annotations

import functools
import itertools
import sys
from dataclasses import replace

import pytest

from celery_idem.core import protocol
from celery_idem.core.record import Record, State
from model.__main__ import PAGE
from model.broken import VARIANTS
from model.page import refuted, replaced, searched
from model.rules import LARGE, SMALL, Rules, Scenario
from model.search import search
from model.steps import Model
from model.timeline import summary, timeline
from model.world import canonical

pytestmark = pytest.mark.timeout(300)


def say(text: str) -> None:
    """Seen with ``pytest -s``."""
    sys.stdout.write(f"\n{text}\n")


searched_once = functools.cache(search)

ONE_JOB = Scenario("one job", faults=2)
PILL = Scenario("a pill", pill=True, faults=1)
#: in which the variants are refuted
SHOWING = sorted({variant.scenario for variant in VARIANTS}, key=str)


@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
def test_every_promise_holds_in_every_state_and_every_job_ends(scenario):
    found = searched_once(scenario)

    say(summary(found))
    assert found.broken == "", timeline(found)
    assert found.states > 100
    assert found.ends > 0


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.rules.name)
def test_a_broken_variant_is_refuted_by_a_history(variant):
    found = search(variant.scenario, variant.rules)

    say(timeline(found))
    assert variant.breaks in found.broken
    assert found.history


@pytest.mark.parametrize(
    "scenario", sorted({v.scenario for v in VARIANTS}, key=str), ids=lambda s: s.name
)
def test_where_the_variants_are_refuted_the_product_is_not(scenario):
    assert search(scenario).broken == ""


def test_the_refutation_is_a_shortest_one():
    """Take, claim with the reply lost, claim again, ack: by hand, nothing shorter loses a job."""
    [variant] = [v for v in VARIANTS if v.rules.name == "the plain SET NX EX wrapper"]

    found = search(variant.scenario, variant.rules)

    assert [step.fault for step in found.history] == [False, True, False, False]


# --- it is the product that is searched


def anybody_holds(record: Record, owner: str) -> bool:
    return record.state is State.RUNNING


def uncounted(record: Record) -> Record:
    return replace(record, state=State.FREE, owner="", lease_until_ms=0)


MUTATIONS = {
    "anybody holds": (ONE_JOB, "_holds", anybody_holds),
    "nobody holds": (ONE_JOB, "_holds", lambda record, owner: False),
    "crashes are not counted": (PILL, "_crashed", uncounted),
    "no attempt is newer": (ONE_JOB, "_newest_attempt", lambda seen, request, same_task: 0),
    "an attempt let in is not noted": (
        ONE_JOB,
        "_published",
        lambda seen, request: seen.published,
    ),
    "a newer attempt always takes over": (
        ONE_JOB,
        "_has_given_up",
        lambda seen, request, same_task: same_task and request.attempt > seen.attempt,
    ),
    "every holder has given up": (
        ONE_JOB,
        "_has_given_up",
        lambda seen, request, same_task: True,
    ),
}


@pytest.mark.parametrize(("scenario", "name", "mutant"), MUTATIONS.values(), ids=MUTATIONS)
def test_a_rule_broken_in_the_products_own_protocol_is_refuted(monkeypatch, scenario, name, mutant):
    monkeypatch.setattr(protocol, name, mutant)

    found = search(scenario)

    say(timeline(found))
    assert found.broken


@pytest.mark.parametrize("operation", ["claim", "complete", "settle", "release", "crash", "renew"])
def test_every_operation_of_the_products_protocol_is_used(monkeypatch, operation):
    real = getattr(protocol, operation)
    calls = itertools.count()

    def counted(*args):
        next(calls)
        return real(*args)

    monkeypatch.setattr(protocol, operation, counted)
    search(ONE_JOB)

    assert next(calls) > 50


# --- the search itself


def some_worlds(scenario: Scenario, wanted: int):
    """So many reachable worlds, under the names that they came with."""
    model = Model(scenario, Rules())
    todo, seen = [scenario.start()], set()
    while todo and len(seen) < wanted:
        world = todo.pop(0)
        if canonical(world) not in seen:
            seen.add(canonical(world))
            yield model, world
            todo += [step.world for step in model.steps(world)]


def test_worlds_that_differ_by_their_workers_names_are_one():
    for _, world in some_worlds(Scenario("three", workers=3, faults=1), 400):
        for order in itertools.permutations(world.workers):
            assert canonical(world._replace(workers=order)) == canonical(world)


def test_a_world_and_its_canonical_form_have_the_same_future():
    for model, world in some_worlds(Scenario("two", tasks=("t1", "t2"), faults=2), 400):
        future = {canonical(step.world) for step in model.steps(world)}
        same = {canonical(step.world) for step in model.steps(canonical(world))}

        assert future == same


def test_the_canonical_form_is_its_own():
    for _, world in some_worlds(ONE_JOB, 400):
        assert canonical(canonical(world)) == canonical(world)


def test_more_faults_reach_more_states():
    sizes = [search(Scenario("one job", faults=faults)).states for faults in range(3)]

    assert sizes == sorted(set(sizes))


# --- docs/model.md is what a run wrote


def test_the_page_shows_what_the_search_of_the_small_bound_finds():
    assert (
        replaced(PAGE.read_text(), "small", searched(map(searched_once, SMALL))) == PAGE.read_text()
    )


def test_the_page_shows_the_refutation_of_every_broken_variant():
    assert replaced(PAGE.read_text(), "broken", refuted()) == PAGE.read_text()


def test_the_page_names_every_scenario_of_the_larger_bound():
    """Its figures are those of ``python -m model --write``: too long for every change."""
    part = PAGE.read_text().split("<!-- begin large")[1].split("<!-- end large")[0]

    rows = [row.split(" | ") for row in part.splitlines() if row.startswith("| ")][1:-1]

    said = [(r[0].removeprefix("| "), int(r[1]), int(r[2])) for r in rows]
    assert said == [(s.name, s.workers, s.faults) for s in LARGE]


def test_a_part_that_the_page_does_not_have_is_an_error():
    with pytest.raises(ValueError, match="0 parts named 'nothing'"):
        replaced(PAGE.read_text(), "nothing", "")
