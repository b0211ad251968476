"""A report as JSON, as GitHub annotations, and as plain lines."""

from __future__ import annotations

import json
import os
from typing import Any

from celery_idem.doctor.finding import Place, Severity
from celery_idem.doctor.runner import Found, Report

#: Version of the JSON document; grows when a field changes its meaning or goes.
JSON_VERSION = 1

_GITHUB_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def as_json(report: Report, fail_level: str) -> str:
    """The document that ``docs/doctor.md`` describes."""
    document = {
        "version": JSON_VERSION,
        "fail_level": fail_level,
        "checks": report.checks,
        "counts": counts(report),
        "silenced": report.silenced,
        "findings": [_as_dict(it) for it in report.found],
        "not_checked": [
            {"id": it.check.id, "about": it.check.about, "reason": it.reason}
            for it in report.unchecked
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def counts(report: Report) -> dict[str, int]:
    """How many of each severity, the worst first."""
    return {
        level.word: sum(1 for it in report.found if it.severity is level)
        for level in sorted(Severity, reverse=True)
    }


def _as_dict(it: Found) -> dict[str, Any]:
    finding, place = it.finding, it.finding.place
    return {
        "id": it.check.id,
        "severity": it.severity.word,
        "about": it.check.about,
        "message": finding.message,
        "task": finding.task or None,
        "setting": finding.setting or None,
        "value": finding.value or None,
        "arithmetic": finding.arithmetic or None,
        "remedy": finding.remedy,
        "path": shown_path(place) if place else None,
        "line": place.line if place else None,
    }


def as_github(report: Report) -> list[str]:
    """Workflow commands: GitHub shows them beside the lines of a pull request."""
    lines = []
    for it in report.found:
        place = it.finding.place
        where = f"file={_property(shown_path(place))},line={place.line}," if place else ""
        level = _GITHUB_LEVELS[it.severity]
        text = _data("\n".join(said(it)))
        lines.append(f"::{level} {where}title={_property(it.check.id)}::{text}")
    lines += [
        f"::notice title={it.check.id} not checked::{_data(it.reason)}" for it in report.unchecked
    ]
    return lines


def said(it: Found) -> list[str]:
    """The finding in lines: what, the sum, the remedy."""
    finding = it.finding
    who = f"{finding.task}: " if finding.task else ""
    lines = [f"{who}{finding.message}"]
    if finding.arithmetic:
        lines.append(finding.arithmetic)
    lines.append(f"mend it: {finding.remedy}")
    return lines


def summary(report: Report) -> str:
    """``2 errors, 1 warning in 30 checks; 1 silenced; not checked: 2``."""
    numbers = [f"{n} {level}{'s' if n != 1 else ''}" for level, n in counts(report).items() if n]
    text = f"{', '.join(numbers) or 'nothing found'} in {report.checks} checks"
    if report.silenced:
        text += f"; {report.silenced} silenced in the source"
    if report.unchecked:
        text += f"; {len(report.unchecked)} not checked"
    return text


def shown_path(place: Place) -> str:
    """Relative to the working directory where the file is below it."""
    try:
        relative = os.path.relpath(place.path)
    except ValueError:  # another drive
        return place.path
    return place.path if relative.startswith("..") else relative


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
