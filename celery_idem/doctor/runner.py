"""Runs checks over a project, and takes out what comments silence."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from celery_idem.core.errors import ConfigError
from celery_idem.doctor.finding import Check, Finding, NotChecked, Severity
from celery_idem.doctor.project import Project

logger = logging.getLogger("celery_idem.doctor")


@dataclass(frozen=True, slots=True)
class Found:
    """A finding, and the check that made it."""

    check: Check
    finding: Finding

    @property
    def severity(self) -> Severity:
        return self.finding.severity or self.check.severity


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A check that could not be made, and why."""

    check: Check
    reason: str
    by_settings: bool = False  #: a setting is wrong, which is mostly a finding as well


@dataclass(slots=True)
class Report:
    """What came out, the worst first."""

    checks: int = 0  #: how many were made
    found: list[Found] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    silenced: int = 0  #: findings that a comment in the source answers

    def at_least(self, severity: Severity) -> list[Found]:
        """The findings that are as bad as this, or worse."""
        return [it for it in self.found if it.severity >= severity]


def run(project: Project, checks: Iterable[Check]) -> Report:
    """Make the checks. One that can't be made stops no other, and what it found before is kept."""
    report = Report()
    for check in checks:
        findings: list[Finding] = []
        unchecked = _look(project, check, findings)
        if unchecked is None:
            report.checks += 1
        else:
            report.unchecked.append(unchecked)
        for finding in findings:
            if _is_silenced(project, check, finding):
                report.silenced += 1
            else:
                report.found.append(Found(check, finding))
    report.found.sort(key=_worst_first)
    return report


def _look(project: Project, check: Check, findings: list[Finding]) -> Unchecked | None:
    """Adds what is found to the list, one by one; the reason, where that came to no end."""
    try:
        findings.extend(check.look(project))
    except NotChecked as reason:
        return Unchecked(check, str(reason))
    except ConfigError as error:  # a finding of the checks that look at settings and tasks
        return Unchecked(check, f"a setting is wrong: {error}", by_settings=True)
    except Exception as error:
        logger.debug("a check failed", exc_info=True)
        return Unchecked(check, f"the check itself failed, {type(error).__name__}: {error}")
    return None


def chosen(
    checks: Iterable[Check],
    *,
    only: Collection[str] = (),
    ignore: Collection[str] = (),
    servers: bool = True,
    source: bool = True,
) -> list[Check]:
    """The checks of these ids, without those; without servers and without reading source if so
    wished.

    Raises :class:`ConfigError` for an id that there is not.
    """
    known = {check.id: check for check in checks}
    for given in (*only, *ignore):
        if given not in known:
            raise ConfigError(f"no check {given!r}; there are {', '.join(known)}")
    return [
        check
        for check in known.values()
        if (not only or check.id in only)
        and check.id not in ignore
        and (servers or not check.asks_servers)
        and (source or not check.reads_source)
    ]


def _is_silenced(project: Project, check: Check, finding: Finding) -> bool:
    """By a comment on its own lines, or on the head of the task that it is about."""
    heads = [it.place for it in project.tasks if it.name == finding.task] if finding.task else []
    places = [it for it in (finding.place, *heads) if it is not None]
    return any(project.reader.silences(check.id, place) for place in places)


def _worst_first(it: Found) -> tuple[int, str, str, str, int]:
    place = it.finding.place
    where = (place.path, place.line) if place else ("", 0)
    return (-it.severity, it.check.id, it.finding.task, *where)
