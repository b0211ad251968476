"""``celery -A proj idem check`` as a user calls it: formats, exit codes, explanations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from celery_idem.cli import check as cli
from celery_idem.cli.check import check
from celery_idem.doctor.checks import CHECKS
from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.runner import Found, Report, Unchecked

PROJECT = """
from celery import Celery
from celery_idem import IdempotentTask

app = Celery("shop", broker="redis://localhost:1/0", set_as_current=False)

@app.task(base=IdempotentTask, idem_key="{x}", retention_s=60, max_retries=8, time_limit=60)
def short(x): ...
"""

Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def celery(tmp_path: Path) -> Call:
    """``celery(*words)``: the command, in a folder with the project ``shop``."""
    (tmp_path / "shop.py").write_text(PROJECT)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", "shop", "idem", "check", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])},
            capture_output=True,
            text=True,
            timeout=100,
        )

    return call


def test_piped_it_is_plain_lines_that_point_at_the_task_and_the_exit_code_is_one(celery):
    done = celery("--only", "IDEM002")

    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "IDEM002 error: retention is shorter than twice the retry window"
    assert lines[1].strip() == "shop.py:7"
    assert "mend it: retention_s=" in done.stdout
    assert lines[-1] == "1 error in 1 checks"


def test_json_is_the_documented_document(celery):
    done = celery("--only", "IDEM002", "--json", "--fail-level", "never")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document.keys() == {
        "version", "fail_level", "checks", "counts", "silenced", "findings", "not_checked",
    }  # fmt: skip
    assert document["counts"] == {"error": 1, "warning": 0, "info": 0}
    (finding,) = document["findings"]
    assert finding.keys() == {
        "id", "severity", "about", "message", "task", "setting", "value", "arithmetic", "remedy",
        "path", "line",
    }  # fmt: skip
    # 2 × (8 × 180 s + 9 runs of 60 s + 3600 s)
    assert (finding["path"], finding["line"], finding["remedy"]) == (
        "shop.py", 7, f"retention_s={2 * (8 * 180 + 9 * 60 + 3600)}",
    )  # fmt: skip


def test_github_annotations_name_file_and_line(celery):
    done = celery("--only", "IDEM002", "--format", "github")

    (line,) = done.stdout.splitlines()
    assert line.startswith("::error file=shop.py,line=7,title=IDEM002::shop.short: retention 60 s")
    assert "%0Amend it: retention_s=" in line


def test_a_project_that_can_not_be_imported_is_wrong_usage(celery, tmp_path):
    (tmp_path / "shop.py").write_text("import nothing_of_this_name")

    assert celery().returncode == 2


@pytest.mark.parametrize("broken", ["import nothing_of_this_name", "1 / 0"])
def test_so_is_a_task_module_that_can_not_be_imported(celery, tmp_path, broken):
    (tmp_path / "shop.py").write_text(f"{PROJECT}\napp.conf.include = ['mails']\n")
    (tmp_path / "mails.py").write_text(broken)

    done = celery("--no-servers")

    assert done.returncode == 2
    assert "the project can't be imported" in done.stderr
    assert "mails.py" in done.stderr
    assert done.stdout == ""


def invoke(*words: str, report: Report | None = None) -> tuple[int, str]:
    """The command in this process, on a report that is already there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "_app", lambda ctx: None)
        patch.setattr(cli, "Project", lambda app, **options: None)
        patch.setattr(cli, "run", lambda project, checks: report)
        result = CliRunner().invoke(check, list(words))
    return result.exit_code, result.output


def made(*levels: Severity, unchecked: bool = False) -> Report:
    checks = [Check("IDEM999", "made up", level, lambda _: []) for level in levels]
    report = Report(checks=len(checks))
    report.found = [Found(it, Finding("wrong", remedy="mend")) for it in checks]
    if unchecked:
        report.unchecked = [Unchecked(CHECKS[0], "Redis does not answer")]
    return report


@pytest.mark.parametrize(
    ("words", "report", "code"),
    [
        ([], made(), 0),
        ([], made(Severity.WARNING), 0),
        ([], made(Severity.WARNING, Severity.ERROR), 1),
        (["--fail-level", "warning"], made(Severity.WARNING), 1),
        (["--fail-level", "warning"], made(Severity.INFO), 0),
        (["--fail-level", "info"], made(Severity.INFO), 1),
        (["--fail-level", "never"], made(Severity.ERROR), 0),
        ([], made(unchecked=True), 0),
        (["--require-all"], made(unchecked=True), 3),
        (["--require-all"], made(Severity.ERROR, unchecked=True), 1),
        (["--require-all"], made(), 0),
        (["--only", "IDEM000"], made(), 2),
        (["--fail-level", "awful"], made(), 2),
    ],
)
def test_the_exit_code_follows_the_worst_finding(words, report, code):
    assert invoke(*words, report=report)[0] == code


def test_what_could_not_be_asked_is_said_with_its_reason():
    _, output = invoke(report=made(unchecked=True))

    assert "IDEM001 not checked: Redis does not answer" in output
    assert output.splitlines()[-1] == "nothing found in 0 checks; 1 not checked"


def test_tasks_with_the_same_mistake_stand_together():
    it = CHECKS[0]
    report = Report(checks=1)
    report.found = [Found(it, Finding("wrong", remedy="mend", task=name)) for name in "abc"]

    _, output = invoke(report=report)

    assert [line.strip() for line in output.splitlines()] == [
        f"{it.id} error: {it.about}", "3 times: wrong", "a", "b", "c", "mend it: mend",
        "3 errors in 1 checks",
    ]  # fmt: skip


def test_a_terminal_gets_a_table():
    pytest.importorskip("rich")

    code, output = invoke("--format", "table", report=made(Severity.ERROR))

    assert code == 1
    assert "│ IDEM999 │ made up" in output


@pytest.mark.platform("linux", "darwin")
def test_on_a_real_terminal_the_table_comes_by_itself(celery, tmp_path):
    pytest.importorskip("rich")
    import pty

    shown, terminal = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "shop", "idem", "check", "--only", "IDEM002"],
        cwd=tmp_path, stdout=terminal, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path]), "TERM": "xterm"},
    )  # fmt: skip
    os.close(terminal)
    written = b""
    try:
        while chunk := os.read(shown, 65536):
            written += chunk
    except OSError:  # Linux: the other end is closed
        pass
    os.close(shown)

    assert done.wait(timeout=60) == 1
    assert "IDEM002" in written.decode()
    assert "│" in written.decode()


def test_the_list_holds_every_check_and_explain_its_page():
    _, listed = invoke("--list")
    _, one = invoke("--explain", "IDEM002")
    _, everything = invoke("--explain", "all")

    assert [line.split()[0] for line in listed.splitlines()] == [it.id for it in CHECKS]
    assert one.startswith("## IDEM002\n\n**retention is shorter than twice the retry window**")
    assert "**Mend it:**" in one
    assert all(f"## {it.id}\n" in everything for it in CHECKS)
