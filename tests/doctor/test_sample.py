"""No false alarm on tasks that others wrote: three styles, sixty tasks (``sample``)."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from celery import _state

from celery_idem.doctor.checks import CHECKS
from celery_idem.doctor.project import Project
from celery_idem.doctor.runner import chosen, run
from tests.doctor.absent import stand_ins
from tests.doctor.conftest import only_shared

SAMPLE = Path(__file__).with_name("sample")
#: module → its tasks. The second ones were written after the checks, and not changed to suit them.
STYLES = {
    "functions": 20, "classes": 20, "django_app": 20, "second_services": 19, "second_pipeline": 20,
}  # fmt: skip
_EXPECTED = re.compile(r"# expect: (IDEM\d{3})")


@pytest.fixture
def style(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The module of this style, in a package of its own as a user has it."""
    pytest.importorskip("django")
    package = tmp_path / "theirs"
    shutil.copytree(SAMPLE, package)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")  # boto3 wants one to make a client
    shared, current = set(_state._on_app_finalizers), _state._tls.current_app
    with stand_ins():
        module = importlib.import_module(f"theirs.{request.param}")
        yield module
    only_shared(shared)
    _state._tls.current_app = current
    module.app.close()
    for name in [it for it in sys.modules if it == "theirs" or it.startswith("theirs.")]:
        del sys.modules[name]


@pytest.mark.parametrize("style", STYLES, indirect=True)
def test_the_tasks_of_a_style_have_no_false_alarm(
    style: ModuleType, request: pytest.FixtureRequest
) -> None:
    project = Project(style.app)

    # an old Celery is a true alarm on the oldest leg
    report = run(project, chosen(CHECKS, ignore=["IDEM070"], servers=False))

    assert len(project.tasks) == STYLES[request.node.callspec.params["style"]]
    found = {
        (it.check.id, it.finding.place.line if it.finding.place else 0): it for it in report.found
    }
    expected = set()
    for number, line in enumerate(Path(str(style.__file__)).read_text().splitlines(), 1):
        if match := _EXPECTED.search(line):
            expected.add((match.group(1), number))
    alarms = {key: f"{it.finding.task}: {it.finding.message}" for key, it in found.items()}
    assert {key: text for key, text in alarms.items() if key not in expected} == {}
    assert expected - found.keys() == set()


@pytest.mark.parametrize("style", STYLES, indirect=True)
def test_every_task_of_a_style_is_found_in_its_source(style: ModuleType) -> None:
    project = Project(style.app)

    assert [it.name for it in project.tasks if it.place is None] == []
