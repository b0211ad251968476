"""A mistake in a project is one sentence, no trace, and an exit code: whatever command meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from celery_idem.cli.told import ours_in
from tests.support.workers import ROOT

APP = "tests.apps.refused:app"
SETTING = "unknown setting 'lane'; did you mean 'lanes'?"
OPTION = "refused.pay: acks_late=False breaks the promise"
ON_ONE_QUEUE = {"lanes": {"a": {"queue": "q"}, "b": {"queue": "q"}}}


class Project:
    """Commands on an app with a mistake."""

    def __init__(self, url: str, bad: str, idem: Any, options: Any) -> None:
        self.env = {"TEST_BROKER": url, "TEST_BAD": bad}
        self.env |= {} if idem is None else {"TEST_IDEM": json.dumps(idem)}
        self.env |= {} if options is None else {"TEST_OPTIONS": json.dumps(options)}

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=_without_django() | self.env | env,
            capture_output=True,
            text=True,
            timeout=90,
        )

    def celery(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "celery", "-A", APP, *words)


def _without_django() -> dict[str, str]:
    """This process's environment; tests of Django set its project there."""
    return {name: it for name, it in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}


@pytest.fixture
def project(redis_url: str) -> Any:
    """Factory ``project(bad="none", idem=None, options=None, broker="redis")``."""

    def make(
        bad: str = "none", idem: Any = None, options: Any = None, broker: str = "redis"
    ) -> Project:
        return Project(redis_url.replace("redis", broker, 1), bad, idem, options)

    return make


def assert_said_once(ended: subprocess.CompletedProcess[str], says: str, code: int = 1) -> None:
    said = ended.stdout + ended.stderr
    assert ended.returncode == code, said
    assert says in said
    assert said.count(says) == 1
    assert "Traceback" not in said
    assert 'File "' not in said


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        pytest.param({"bad": "early"}, OPTION, id="option"),
        pytest.param({"idem": {"lane": 1}}, SETTING, id="setting"),
        pytest.param({"idem": [1]}, "idem: must be a dict of settings, not list", id="no dict"),
        pytest.param({"idem": ON_ONE_QUEUE}, "both use queue 'q'", id="two lanes on a queue"),
        pytest.param(
            {"idem": {"lanes": {"a": 1}, "lane_order": "deadline"}},
            "lane_order 'deadline' needs a deadline for every lane; lane 'a' has none",
            id="a lane that this worker does not consume",
        ),
        pytest.param(
            {"idem": {"dead_letters": {"flood": 1}}}, "'flood' in dead_letters", id="dead letters"
        ),
        pytest.param({"idem": {"metrics": {"prt": 1}}}, "'prt' in metrics", id="metrics"),
        pytest.param({"idem": {"store": "memory"}}, "the memory store is one process's", id="pool"),
        pytest.param({"idem": {"store": "django"}}, "store 'django' needs Django", id="no Django"),
        pytest.param(
            {"idem": {"dead_letters": {"store": "django"}}},
            "store 'django' needs Django",
            id="letters without Django",
        ),
        pytest.param(
            {"idem": {"store": "redis://localhost:port/0"}},
            "store 'redis://localhost:port/0' can't be read",
            id="URL",
        ),
        pytest.param(
            {"broker": "redis-streams", "options": {"lease_s": "long"}},
            "broker_transport_options: lease_s must be a number of seconds, not 'long'",
            id="transport, once it is connected",
        ),
        pytest.param(
            {"broker": "redis-streams", "options": {"priority_steps": [0, 11]}},
            "priority_steps must be of 0 to 9, not [0, 11]",
            id="priorities",
        ),
    ],
)
def test_a_worker_says_in_a_sentence_why_it_does_not_start(
    project: Any, mistake: dict[str, Any], says: str
) -> None:
    ended = project(**mistake).celery("worker", "-c", "1", "-l", "INFO")

    assert_said_once(ended, says)


def test_what_an_import_meets_is_said_with_its_place(project: Any) -> None:
    """A task of a class is bound where it is registered."""
    says = "refused.refund: acks_late=False breaks the promise"

    for words in (["worker", "-c", "1"], ["beat"], ["idem", "list"], ["dlq", "list"]):
        ended = project("class").celery(*words)

        assert_said_once(ended, says, code=2)
        assert f"({ROOT / 'tests/apps/refused.py'}, line " in ended.stderr


def test_another_error_of_a_project_keeps_its_trace(project: Any) -> None:
    ended = project().run("-m", "celery", "-A", APP, "worker", "-c", "1", TEST_IDEM="{")

    assert ended.returncode == 2
    assert "JSONDecodeError" in ended.stderr
    assert "Traceback" in ended.stderr


def test_beat_says_it_too(project: Any, tmp_path: Path) -> None:
    ended = project("early").celery("beat", "-s", str(tmp_path / "schedule"))

    assert_said_once(ended, OPTION)


def test_a_worker_with_a_log_file_says_it_there_too(project: Any, tmp_path: Path) -> None:
    """Nobody reads the stderr of one that runs in the background."""
    log = tmp_path / "worker.log"

    ended = project(idem=ON_ONE_QUEUE).celery("worker", "-c", "1", "-f", str(log))

    assert_said_once(ended, "both use queue 'q'")
    assert "CRITICAL" in log.read_text()
    assert log.read_text().count("both use queue 'q'") == 1


@pytest.mark.parametrize(
    "words",
    [
        "idem list", "idem show k", "idem stats", "idem release k", "idem revoke k", "idem prune",
        "idem lanes", "idem simulate", "idem tune", "dlq list", "dlq groups", "dlq show x",
        "dlq stats", "dlq replay --all", "dlq purge --all --yes", "dlq export -", "dlq collect",
    ],
)  # fmt: skip
def test_every_command_of_ours_says_it(project: Any, words: str) -> None:
    ended = project(idem={"lane": 1}).celery(*words.split())

    assert_said_once(ended, SETTING)


@pytest.mark.parametrize("words", ["idem list", "idem lanes", "dlq list", "dlq stats"])
def test_so_does_manage_py(project: Any, words: str) -> None:
    ended = project(idem={"lane": 1}).run(
        "-m", "django", *words.split(), DJANGO_SETTINGS_MODULE="tests.django.settings"
    )

    assert_said_once(ended, SETTING)


def test_a_worker_under_django_says_it_without_warnings_of_tasks_that_are_there(
    project: Any,
) -> None:
    """Django's checks meet it first, and their refusal is swallowed by Celery."""
    ended = project("early").run(
        "-m", "celery", "-A", APP, "worker", "-c", "1",
        DJANGO_SETTINGS_MODULE="tests.django.settings",
    )  # fmt: skip

    assert_said_once(ended, OPTION)
    assert "DuplicateTaskNameWarning" not in ended.stderr


def test_an_error_that_is_its_own_cause_is_none_of_ours() -> None:
    """``raise error from error``: a ring without end."""
    error = ValueError("of the project")
    error.__cause__ = error

    assert ours_in(error) is None
