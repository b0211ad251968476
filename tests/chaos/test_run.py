"""A short chaos run on each broker that promises to lose nothing, and its report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.report import page, summary
from chaos.run import Plan, run
from chaos.stage import LEGS
from tests.support.servers import missing_redis

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.platform("linux")
@pytest.mark.parametrize("name", ["streams", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def test_a_shop_under_faults_keeps_every_promise(name, tmp_path):
    if reason := missing_redis():
        pytest.skip(reason)
    plan = Plan(LEGS[name], length_s=45, seed=7, rate=10, gap_s=3)

    outcome = run(plan, tmp_path)

    assert outcome.verdict.holds, summary(outcome)
    assert outcome.ended_alone == [], summary(outcome)
    assert len(outcome.happenings) == len(plan.faults()) > 5
    report = page([outcome])
    assert "every promise held" in report
    assert "http" not in report.replace(outcome.plan.leg.title, ""), "it needs nothing from outside"


def test_the_schedule_can_be_read_before_anything_runs():
    command = [sys.executable, "-m", "chaos", "--schedule", "--seed", "7", "--broker", "redis"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    said = [
        subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]

    assert said[0] == said[1]
    assert said[0].count("server killed") > 1
