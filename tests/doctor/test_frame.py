"""How checks are run, silenced and chosen, whatever they look for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_idem.core.errors import ConfigError
from celery_idem.doctor.checks import CHECKS
from celery_idem.doctor.finding import Check, Finding, NotChecked, Severity
from celery_idem.doctor.project import Project
from celery_idem.doctor.runner import chosen, run

SHORT = """
@app.task(base=IdempotentTask, idem_key="{x}", retention_s=60,
          max_retries=8){comment}
def short(x): ...
"""


def test_every_check_has_an_id_of_its_own_and_an_explanation():
    ids = [check.id for check in CHECKS]

    assert ids == sorted(set(ids))
    assert all(it.startswith("IDEM") and len(it) == 7 for it in ids)
    assert [it.id for it in CHECKS if "**Mend it:**" not in it.explanation] == []
    assert [it.id for it in CHECKS if it.about.endswith(".")] == []


def test_a_finding_names_task_setting_value_sum_remedy_and_line(project):
    examined = project(SHORT.replace("{comment}", ""))

    (found,) = examined.report("IDEM002").found

    finding = found.finding
    assert finding.task.endswith(".short")
    assert (finding.setting, finding.value) == ("retention_s", "60")
    # 8 retries of 180 s, one redelivery of 3600 s, twice
    assert finding.remedy == f"retention_s={2 * (8 * 180 + 3600)}"
    assert "= 10080 s > 60 s" in finding.arithmetic
    assert finding.place is not None
    assert finding.place.path == str(examined.path)
    assert finding.place.line == examined.line_of("@app.task")


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("  # idem: ignore[IDEM002]", 0),
        ("  # idem: ignore", 0),
        ("  # idem: ignore[IDEM001, IDEM002] kept short for the law's sake", 0),
        ("  # idem: ignore[IDEM001]", 1),
        ("  # ignore", 1),
    ],
)
def test_a_comment_on_the_tasks_head_silences_the_checks_that_it_names(project, comment, left):
    examined = project(SHORT.replace("{comment}", comment))

    report = examined.report("IDEM002")

    assert len(report.found) == left
    assert report.silenced == 1 - left


def test_a_text_that_looks_like_the_comment_silences_nothing(project):
    examined = project(SHORT.replace('"{x}"', '"# idem: ignore:{x}"').replace("{comment}", ""))

    assert len(examined.report("IDEM002").found) == 1


def test_a_check_that_can_not_be_made_is_said_and_stops_no_other(project):
    def refuses(project: Project) -> list[Finding]:
        raise NotChecked("Redis does not answer")

    examined = project("")
    checks = [
        Check("IDEM998", "refuses", Severity.ERROR, refuses),
        Check("IDEM999", "finds", Severity.INFO, lambda _: [Finding("it", remedy="mend")]),
    ]

    report = run(Project(examined.app), checks)

    assert [(it.check.id, it.reason) for it in report.unchecked] == [
        ("IDEM998", "Redis does not answer")
    ]
    assert [it.check.id for it in report.found] == ["IDEM999"]
    assert report.checks == 1


def test_a_check_that_fails_by_itself_is_said_and_stops_no_other(project):
    examined = project("")
    checks = [
        Check("IDEM998", "fails", Severity.ERROR, lambda _: [1 / 0]),  # type: ignore[list-item]
        Check("IDEM999", "finds", Severity.INFO, lambda _: [Finding("it", remedy="mend")]),
    ]

    report = run(Project(examined.app), checks)

    assert "the check itself failed, ZeroDivisionError" in report.unchecked[0].reason
    assert [it.check.id for it in report.found] == ["IDEM999"]


def test_what_a_check_found_before_it_failed_is_kept(project):
    def fails(project: Project) -> Iterator[Finding]:
        yield Finding("it", remedy="mend")
        raise AttributeError("'str' object has no attribute 'name'")

    report = run(Project(project("").app), [Check("IDEM999", "fails", Severity.ERROR, fails)])

    assert [it.check.id for it in report.found] == ["IDEM999"]
    assert [it.check.id for it in report.unchecked] == ["IDEM999"]
    assert report.checks == 0


def test_the_worst_comes_first(project):
    examined = project("")
    checks = [
        Check(f"IDEM99{n}", "finds", level, lambda _: [Finding("it", remedy="mend")])
        for n, level in enumerate([Severity.INFO, Severity.ERROR, Severity.WARNING])
    ]

    report = run(Project(examined.app), checks)

    assert [it.check.id for it in report.found] == ["IDEM991", "IDEM992", "IDEM990"]
    assert len(report.at_least(Severity.WARNING)) == 2


def test_an_unknown_id_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="no check 'IDEM777'; there are IDEM001, "):
        chosen(CHECKS, only=["IDEM777"])


def test_without_servers_only_checks_remain_that_ask_none():
    assert not any(check.asks_servers for check in chosen(CHECKS, servers=False))
