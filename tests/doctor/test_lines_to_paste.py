"""A line to paste ends its finding, and changes nothing else that the user has set."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from celery_idem.binding import Binding
from celery_idem.doctor import checks
from celery_idem.doctor.checks import CHECKS, versions
from celery_idem.doctor.finding import Finding
from celery_idem.doctor.fleet import Fleet, Worker
from celery_idem.doctor.project import Project
from celery_idem.doctor.runner import chosen, run

#: what nobody may lose by pasting a line
IDEM: dict[str, Any] = {
    "store": "redis://localhost:1/7",
    "lanes": {"critical": {"weight": 10, "reserve": 1}, "low": 1},
    "dead_letters": {"store": "redis://localhost:1/8", "retention_s": 86400},
    "prefix": "shop",
}
OPTIONS: dict[str, Any] = {"master_name": "m", "visibility_timeout": 600, "socket_timeout": 3}
QUEUES = "from kombu import Queue\napp.conf.task_queues = [Queue('celery'), Queue('bulk')]\n"
LATE = "@app.task(acks_late=True, reject_on_worker_lost=True, {})\ndef late(): ...\n"
IDEMPOTENT = "@app.task(base=IdempotentTask, time_limit=60, lane='low')\ndef one(): ...\n"
ON_CELERY_5_7 = pytest.mark.celery_min(5, 7)


def worker(**given: Any) -> Worker:
    fields = {"queues": frozenset(["low"]), "ours": True, "visibility_timeout_s": 600.0, **given}
    return Worker(name="w", clock=None, **fields)


@pytest.fixture
def found(project: Any) -> Any:
    """``found(id, source, …)``: the app, a function that checks it anew, and what is found."""

    def call(check: str, source: str, idem: Any, options: Any, fleet: Any, broker: str) -> Any:
        head = (
            f"app.conf.idem = {IDEM | (idem or {})!r}\n"
            f"app.conf.broker_transport_options = {OPTIONS | (options or {})!r}\n"
        )
        app = project(head + source, broker=broker).app

        def again() -> list[Finding]:
            app.__dict__["_celery_idem_binding"] = Binding(app)
            it = Project(app)
            if fleet is not None:
                it.servers._answers["fleet"] = fleet
            return [each.finding for each in run(it, chosen(CHECKS, only=[check])).found]

        return app, again

    return call


@pytest.mark.parametrize(
    ("check", "source", "idem", "options", "fleet", "broker"),
    [
        ("IDEM010", LATE.format("time_limit=900"), {"visibility_keeper": False}, {}, None, "redis"),
        (
            "IDEM011", LATE.format("bind=True, autoretry_for=(OSError,), default_retry_delay=900"),
            {"visibility_keeper": False}, {}, None, "redis",
        ),
        ("IDEM022", LATE.format("acks_on_failure_or_timeout=False"), {}, {}, None, "redis"),
        pytest.param(
            "IDEM023", LATE.format("time_limit=9, acks_on_failure=False, acks_on_timeout=True"),
            {}, {}, None, "redis", marks=ON_CELERY_5_7,
        ),
        ("IDEM031", IDEMPOTENT, {"lane_order": "strict"}, {}, None, "redis"),
        (
            "IDEM031", QUEUES, {"lanes": {}}, {"queue_order_strategy": "priority"}, None, "redis",
        ),
        (
            "IDEM032", IDEMPOTENT, {}, {},
            Fleet((worker(queues=frozenset(["critical", "low", "bulk"])),)), "redis",
        ),
        (
            "IDEM033", QUEUES.replace("Queue('celery'), ", ""), {}, {}, None, "redis",
        ),
        ("IDEM042", "", {}, {}, Fleet((worker(visibility_timeout_s=3.0),)), "redis"),
        ("IDEM044", IDEMPOTENT, {}, {}, None, "amqp"),
    ],
)  # fmt: skip
def test_a_line_to_paste_ends_its_finding_and_keeps_every_other_setting(
    found, check, source, idem, options, fleet, broker
):
    app, again = found(check, source, idem, options, fleet, f"{broker}://localhost:1/")
    before = {name: copy.deepcopy(app.conf.get(name)) for name in (*SETTINGS, "task_queues")}

    (finding,) = again()
    assert finding.remedy.startswith("app.conf.")
    exec(finding.remedy, {"app": app})

    assert lost(before["idem"], app.conf.idem) <= {"lane_order", "visibility_keeper"}
    changed = lost(before["broker_transport_options"], app.conf.broker_transport_options)
    assert changed <= ({"visibility_timeout"} if check in ("IDEM010", "IDEM011") else set())
    assert app.conf.task_queues == before["task_queues"]
    # IDEM042: the others are out of hearing then, which takes a broker to see
    assert check == "IDEM042" or again() == []


SETTINGS = ("idem", "broker_transport_options")


def lost(before: Any, after: Any, path: str = "") -> set[str]:
    """Paths of what was there and is there no more, or otherwise."""
    if isinstance(before, dict) and isinstance(after, dict):
        gone = set()
        for name, value in before.items():
            gone |= lost(value, after.get(name), f"{path}.{name}".lstrip("."))
        return gone
    return set() if before == after else {path}


def test_a_line_for_a_version_keeps_the_other_settings(project):
    app = project(f"app.conf.idem = {IDEM!r}\n").app
    lines = [it.remedy for it in versions.FAULTS if it.remedy.startswith("app.conf.")]

    for line in lines:
        exec(line, {"app": app})

    assert lines
    assert app.conf.idem == {**IDEM, "visibility_keeper": True}


def test_no_check_writes_a_setting_that_is_a_dict_as_a_whole():
    whole = re.compile(r"app\.conf\.(idem|broker_transport_options)\b(\[.*?\])? = ")

    texts = {path.name: path.read_text() for path in Path(checks.__file__).parent.glob("*.py")}

    assert [name for name, text in texts.items() if whole.search(text)] == []
