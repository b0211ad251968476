"""The verdict: each promise has a ledger that breaks it, and one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.faults import Happening
from chaos.load import Job
from chaos.looks import Look, vanished
from chaos.recovery import quantile, recoveries
from chaos.schedule import SERVER, Fault, Kind
from chaos.verdict import Accepted, judge

NOTHING_LOST, DONE_IS_DONE, STEPS, EXACTLY_ONCE, AT_MOST_ONCE, EXPLAINED = range(6)


def line(at: float, key: str, what: str, fence: int = 1, **more: Any) -> dict[str, Any]:
    given = {"monotonic": at, "key": key, "what": what, "fence": fence}
    return {"worker": "worker 0", "pid": fence, **given, **more}


def once(key: str, at: float = 0.0, fence: int = 1, name: str = "charge") -> list[dict[str, Any]]:
    """A body that runs through."""
    return [
        line(at, key, "start", fence),
        line(at + 1, key, "effect", fence, name=name),
        line(at + 2, key, "end", fence),
        line(at + 3, key, "completed", fence),
    ]


def happened(kind: Kind, began: float, ended: float, target: int = 0) -> Happening:
    return Happening(Fault(began, kind, target, ended - began), began, ended)


def broken(lines: list[dict[str, Any]], accepted: Accepted, *faults: Happening) -> list[int]:
    verdict = judge(lines, accepted, faults)
    return [i for i, promise in enumerate(verdict.promises) if not promise.holds]


def keys(*names: str) -> frozenset[str]:
    return frozenset(names)


def test_a_job_that_ran_once_breaks_nothing():
    assert broken(once("pay:1"), Accepted(keys("pay:1"))) == []


def test_a_job_that_is_nowhere_is_lost():
    assert broken(once("pay:1"), Accepted(keys("pay:1", "pay:2"))) == [NOTHING_LOST]


def test_a_job_with_an_effect_and_no_record_is_not_done():
    lines = once("pay:1")[:2]

    assert broken(lines, Accepted(keys("pay:1"))) == [NOTHING_LOST]


@pytest.mark.parametrize(
    "known", [{"letters": {"pay:1": "poison"}}, {"done_in_store": keys("pay:1")}]
)
def test_a_letter_or_a_record_is_not_a_loss(known):
    assert broken([], Accepted(keys("pay:1"), **known)) == []


def test_a_popped_message_is_told_apart_and_counted():
    verdict = judge([], Accepted(keys("pay:1"), popped=keys("pay:1")), [])

    assert verdict.holds
    assert [known.broken for known in verdict.known] == [("pay:1",)]


def test_a_body_that_starts_after_its_record_breaks_done_is_done():
    lines = [*once("pay:1"), line(9, "pay:1", "start", 2)]

    assert broken(lines, Accepted(keys("pay:1"))) == [DONE_IS_DONE]


def test_a_paused_holder_that_begins_late_has_the_lower_fence_and_is_counted():
    lines = [*once("pay:1", fence=2), line(9, "pay:1", "start", 1)]

    verdict = judge(lines, Accepted(keys("pay:1")), [])

    assert verdict.holds
    assert verdict.counts["paused holders that began after their successor ended"] == 1


def test_the_same_across_a_failover_is_known():
    lines = [*once("pay:1"), line(9, "pay:1", "start", 2)]

    verdict = judge(lines, Accepted(keys("pay:1"), unreplicated=[(3.5, 8.0)]), [])
    elsewhere = judge(lines, Accepted(keys("pay:1"), unreplicated=[(20, 30)]), [])

    assert verdict.holds
    assert [known.broken for known in verdict.known] == [("pay:1",)]
    assert not elsewhere.holds


@pytest.mark.parametrize(("sent", "holds"), [(3.0, True), (1.0, False), (9.0, False)])
def test_a_lost_job_is_known_only_if_it_was_accepted_around_the_failover(sent, holds):
    accepted = Accepted(keys("pay:1"), sent={"pay:1": sent}, unreplicated=[(3.5, 8.0)])

    assert judge([], accepted, []).holds is holds


def test_a_second_effect_needs_a_fault_of_its_worker_in_between():
    lines = once("pay:1")[:2] + once("pay:1", 30, fence=2)
    accepted = Accepted(keys("pay:1"))

    assert broken(lines, accepted) == [EXPLAINED]
    assert broken(lines, accepted, happened(Kind.KILL_TREE, 1.5, 3)) == []
    assert broken(lines, accepted, happened(Kind.SERVER_KILL, 1.5, 3, SERVER)) == []
    assert broken(lines, accepted, happened(Kind.KILL_TREE, 1.5, 3, target=1)) == [EXPLAINED]
    assert broken(lines, accepted, happened(Kind.CLOCK, 1.5, 3)) == [EXPLAINED]


def step(at: float, name: str, fence: int) -> dict[str, Any]:
    return line(at, "ship:1", "effect", fence, name=name)


def test_a_recorded_step_that_runs_again_is_found():
    kill = happened(Kind.KILL_CHILD, 2.5, 2.5)
    done = Accepted(keys("ship:1"), keys("ship:1"), packed={"ship:1": 1})
    again = [step(1, "label", 1), step(2, "carrier", 1), step(4, "label", 2)]
    in_the_gap = [step(1, "carrier", 1), step(4, "carrier", 2)]
    old_holder = [step(1, "label", 2), step(2, "carrier", 2), step(4, "label", 1)]

    assert STEPS in broken(again, done, kill)
    assert broken(in_the_gap, done, kill) == []
    assert STEPS not in broken(old_holder, done, kill), "the fence refuses it; it is no new claim"


@pytest.mark.parametrize(("rows", "wrong"), [({"ship:1": 1}, []), ({"ship:1": 2}, [EXACTLY_ONCE]),
                                             ({}, [EXACTLY_ONCE])])  # fmt: skip
def test_a_shipment_that_is_done_has_one_row(rows, wrong):
    done = Accepted(keys("ship:1"), keys("ship:1"), packed=rows)

    assert broken([], done) == wrong


def test_a_second_at_most_once_effect_is_found():
    kill = happened(Kind.KILL_CHILD, 2.5, 2.5)
    lines = [step(1, "label", 1), step(4, "label", 2)]

    done = Accepted(keys("ship:1"), keys("ship:1"), packed={"ship:1": 1})

    found = broken(lines, done, kill)

    assert found == [AT_MOST_ONCE]


# -- what kombu's Redis lists lose


def jobs(*task_ids: str, sent: float = 1.0) -> dict[str, Job]:
    return {"pay:1": Job("pay:1", sent, list(task_ids))}


LOOKS = [Look(1.5, keys("a")), Look(2.5, keys()), Look(3.5, keys())]


def test_popped_is_what_was_gone_at_the_first_look_after_a_kill():
    assert vanished(jobs("a"), ["pay:1"], LOOKS, [(2.0, 2.2)], keys()) == keys("pay:1")


@pytest.mark.parametrize(
    ("taking", "started"),
    [([], keys()), ([(3.0, 3.2)], keys()), ([(2.0, 2.2)], keys("pay:1"))],
    ids=["without a kill", "before the kill", "although it had started"],
)
def test_anything_else_that_is_missing_is_ours(taking, started):
    assert vanished(jobs("a"), ["pay:1"], LOOKS, taking, started) == frozenset()


# -- recovery


def test_recovery_is_from_the_kill_to_the_next_start_of_what_it_cut_short():
    lines = [
        line(1, "pay:1", "start", 1), line(6, "pay:1", "start", 2),
        line(1, "pay:2", "start", 3, worker="worker 1"),
        *once("pay:3", 0, 4),
        line(2, "ship:1", "start", 5), line(3, "ship:1", "raised", 5),
        line(9, "ship:1", "start", 6),
        line(7, "pay:4", "completed", 9),
    ]  # fmt: skip
    kill = happened(Kind.KILL_TREE, 4.5, 5)

    [row] = recoveries(lines, [kill])

    assert (row.faults, row.hit, row.seconds) == (1, 1, (1.5,))
    assert row.service == (2.5,)


@pytest.mark.parametrize(("part", "value"), [(0.5, 5), (0.99, 10), (1.0, 10), (0.01, 1)])
def test_quantiles_are_values_that_were_seen(part, value):
    assert quantile(range(1, 11), part) == value


def test_there_is_no_quantile_of_nothing():
    assert quantile([], 0.5) is None
