"""The simulation is the product's scheduler on a virtual clock, so what it shows must be true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from celery_idem.cli.lanes import simulate as command
from celery_idem.core.order import parse_lanes
from celery_idem.lanes.simulate import Fleet, Load, propose, scaled, simulate

DEFAULT = parse_lanes(
    {
        "critical": {"weight": 10, "deadline": 2},
        "normal": {"weight": 5, "deadline": 60},
        "low": {"weight": 1, "deadline": 600},
    }
)


def loads(critical: float, normal: float, low: float, run: float = 0.1) -> list[Load]:
    rates = (critical, normal, low)
    return [Load(lane, rate, run, "fixed") for lane, rate in zip(DEFAULT, rates, strict=True)]


def test_the_same_seed_gives_the_same_waits() -> None:
    first = simulate(loads(10, 10, 10), Fleet(2, 2), jobs=2_000)

    assert simulate(loads(10, 10, 10), Fleet(2, 2), jobs=2_000) == first


def test_with_half_the_processes_idle_nobody_waits_long() -> None:
    result = simulate(loads(7, 7, 6), Fleet(1, 4), jobs=5_000)

    assert abs(result.used - 0.5) < 0.05
    assert all(wait.p50_s < 0.01 for wait in result.waits)


def test_too_much_work_is_shared_by_weight() -> None:
    # 40 jobs/s of each lane, 40/s can run: critical's 10/16 are 25/s, normal 12.5, low 2.5
    result = simulate(loads(40, 40, 40), Fleet(1, 4), jobs=12_000)

    # 100 s: a lane that is served at rate r of 40 leaves its last job waiting 100 × (1 - r/40)
    waits = {wait.lane: wait.longest_s for wait in result.waits}
    assert abs(waits["critical"] - 37.5) < 4
    assert abs(waits["normal"] - 69) < 5
    assert abs(waits["low"] - 80) < 1  # 94, but jobs of the first 20 s are not counted
    assert result.used > 0.99


def test_strict_order_starves_the_lowest_lane_and_weighted_does_not() -> None:
    work = loads(30, 12, 2)  # 4.4 processes' worth on 4
    strict = simulate(work, Fleet(1, 4), "strict", jobs=10_000)
    weighted = simulate(work, Fleet(1, 4), "weighted", jobs=10_000)

    assert strict.waits[2].p50_s > 10 * weighted.waits[2].p50_s


def test_a_reserve_serves_the_first_lane_under_long_jobs() -> None:
    work = [
        Load(DEFAULT[0], 1.0, 0.01),
        Load(DEFAULT[2], 0.5, 30.0, "fixed"),  # 15 processes' worth on 4
    ]

    without = simulate(work, Fleet(1, 4), "weighted", jobs=2_000)
    reserved = simulate(work, Fleet(1, 4), "reserve", jobs=2_000)

    assert without.waits[0].p99_s > 5
    assert reserved.waits[0].p99_s < 0.5


def test_weights_are_proposed_that_keep_the_promises() -> None:
    even = parse_lanes({"critical": {"deadline": 1}, "low": {"deadline": 3600}})
    work = [Load(even[0], 18, 0.1, "fixed"), Load(even[1], 30, 0.1, "fixed")]  # 4.8 on 4

    proposal = propose(work, Fleet(1, 4))

    # at equal weights half of 40 jobs/s is enough for 18/s; the low lane bears what is too much
    assert proposal.result.waits[0].kept
    assert proposal.reason == "every lane with a promise keeps it"


def test_what_no_weights_can_do_is_said() -> None:
    proposal = propose(loads(40, 40, 40), Fleet(1, 4))

    assert "no weights can: the work needs 12.0 processes and there are 4" in proposal.reason


@pytest.mark.parametrize("workers", [1, 50])
def test_fleets_of_any_size_are_kept_equally_busy(workers: int) -> None:
    result = simulate(scaled(loads(12, 12, 8), workers), Fleet(workers, 4), jobs=8_000)

    assert abs(result.used - 0.8) < 0.05


def test_the_command_prints_a_table_json_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "waits.png"
    arguments = [
        "--lane", "critical:rate=20,run=0.05,weight=10,deadline=2",
        "--lane", "low:rate=1,run=1,weight=1,deadline=600",
        "--workers", "1,2", "--processes", "4", "--jobs", "1000",
    ]  # fmt: skip

    table = CliRunner().invoke(command, [*arguments, "--picture", str(picture)])
    data = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).output)

    assert table.exit_code == 0, table.output
    assert "The work keeps 2.0 processes busy; there are 4." in table.output
    assert picture.stat().st_size > 5_000
    assert [it["order"] for it in data["results"][:5]] == [
        "weighted", "seconds", "reserve", "strict", "deadline",
    ]  # fmt: skip
    assert set(data["proposal"]["weights"]) == {"critical", "low"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give at least one --lane"),
        (["--lane", "low:rate=1"], "needs rate and run"),
        (["--lane", "low:rate=1,run=1,speed=2"], "knows deadline, rate, reserve, run, spread"),
        (["--lane", "low:rate=0,run=1"], "rate and run must be above 0"),
        (["--lane", "low:rate=1,run=1", "--orders", "fair"], "unknown order 'fair'"),
        (["--lane", "low:rate=1,run=1", "--workers", "0"], "must be at least 1"),
        (
            ["--lane", "low:rate=1,run=1", "--workers", "x"],
            "whole numbers like 1,10,10000, not 'x'",
        ),
        (["--lane", "low:rate=a,run=1"], "rate must be a number, not 'a'"),
        (["--lane", "low:rate=nan,run=1"], "rate must be a number, not 'nan'"),
        (["--lane", "low:rate=1,run=inf"], "run must be a number, not 'inf'"),
        (["--lane", "low:rate=1,run=1,reserve=1.5"], "reserve must be a whole number, not '1.5'"),
        (["--lane", "low:rate=1,run=1,weight=0"], "weight must be above 0"),
        (["--lane", "low:rate=1,run=1", "--lane", "low:rate=2,run=1"], "'low' is given twice"),
        (["--lane", "low:rate=1,run=1", "--orders", "deadline"], "lane 'low' has none"),
    ],
)
def test_wrong_options_are_answered_clearly(arguments: list[str], says: str) -> None:
    outcome = CliRunner().invoke(command, arguments)

    assert outcome.exit_code == 1
    assert says in outcome.output


def test_a_picture_that_cannot_be_written_is_answered_clearly() -> None:
    pytest.importorskip("matplotlib")
    arguments = ["--lane", "low:rate=1,run=1", "--jobs", "100", "--picture", "/nowhere/x.png"]

    outcome = CliRunner().invoke(command, arguments)

    assert outcome.exit_code == 1
    assert "--picture /nowhere/x.png: " in outcome.output
