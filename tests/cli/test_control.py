"""Our remote-control commands, typed in a shell where only ``-A`` was given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from tests.support.effects import Effects
from tests.support.workers import ROOT, Worker

APP = "tests.apps.lanes_idem:app"

CONTROL = {
    "lane_weight <lane> <weight>": "Give a lane another weight",
    "lane_pause <lane>": "Start nothing more of a lane",
    "lane_resume <lane>": "Serve a paused lane again",
    "flood_pause <task> <queue> <seconds>": "Stop consuming a queue",
    "flood_end [queue]": "Serve again what a flood has paused",
}
INSPECT = {"lanes": "Weights, what runs, waits", "floods": "The queues that a flood"}

#: what is typed → what the worker answers
RIGHT = {
    "lane_weight critical 20": "lane 'critical' has weight 20 until this worker restarts",
    "lane_pause low": "lane 'low' is paused until this worker restarts",
    "lane_resume low": "lane 'low' is served",
    "flood_pause some.task low 3600": "low: paused for 3600 s",
    "flood_end low": "served again: low",
    "flood_end": "nothing was paused by a flood",
}
WRONG = {
    "lane_weight": "which lane? this worker serves critical, low",
    "lane_weight critical": "which weight for lane 'critical'?",
    "lane_weight critical heavy": "weight must be above 0, not 'heavy'",
    "lane_weight critical 0": "weight must be above 0, not 0",
    "lane_pause": "which lane? this worker serves critical, low",
    "lane_pause bulk": "no lane 'bulk' here",
    "flood_pause": "which? flood_pause <task> <queue> <seconds>",
    "flood_pause some.task low": "which? flood_pause <task> <queue> <seconds>",
    "flood_pause some.task low long": "the seconds of a pause must be a number, not 'long'",
    "flood_pause some.task bulk 60": "nothing to pause: 'bulk' is paused already, or not consumed",
    "flood_end bulk": "'bulk' was not paused by a flood",
}
#: refused in the shell, by Celery: nothing is sent
TOO_MUCH = {
    "lane_weight critical 20 30": "takes arguments: <lane> <weight>",
    "lane_pause low high": "takes arguments: <lane>",
    "flood_end low high": "takes arguments: [queue]",
}


def celery(*words: str) -> str:
    """What it prints, both of its outputs."""
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-A", APP, "--no-color", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in ended.stdout
    return " ".join(ended.stdout.split())


@pytest.fixture
def worker(
    redis_url: str,
    effects: Effects,
    load_app: Callable[..., Any],
    start_worker: Callable[..., Worker],
) -> Worker:
    """One that serves two of the app's three lanes."""
    load_app("tests.apps.lanes_idem", TEST_BROKER=redis_url)
    return start_worker(APP, queues=("critical", "low"))


@pytest.mark.parametrize(("kind", "commands"), [("control", CONTROL), ("inspect", INSPECT)])
def test_they_are_listed_with_arguments_and_help(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, kind: str, commands: dict[str, str]
) -> None:
    monkeypatch.setenv("TEST_BROKER", redis_url)

    listed = celery(kind, "--list")

    for command, about in commands.items():
        assert f"{command} {about}" in listed


@pytest.mark.parametrize(
    "typed_and_answered",
    [RIGHT, dict(islice(WRONG.items(), 6)), {**dict(islice(WRONG.items(), 6, None)), **TOO_MUCH}],
    ids=["right", "wrong lanes", "wrong floods and too much"],
)
def test_they_work_and_wrong_ones_are_answered_and_stop_nothing(
    worker: Worker, typed_and_answered: dict[str, str]
) -> None:
    patience = ("-t", "20", "-d", worker.hostname)

    for typed, answer in typed_and_answered.items():
        # a broadcast with one destination comes back with its first answer
        assert answer in celery("control", *patience, *typed.split()), typed
    weights = celery("inspect", *patience, "lanes")
    floods = celery("inspect", *patience, "floods")

    weight = 20 if typed_and_answered is RIGHT else 10
    assert f'"weight": {weight}' in weights
    assert "- empty -" in floods
    assert "Traceback" not in worker.log_text()
    assert worker.returncode is None
