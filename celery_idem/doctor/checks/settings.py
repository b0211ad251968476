"""The setting `idem` (`CELERY_IDEM` in Django) can't be read, or no store can be chosen from it.

A worker refuses to start with it. The finding names the wrong key or value, and the nearest right
one.

**Mend it:** as the finding says. Every setting has a default that is right for most: the shortest
one is none at all, with Redis as the broker or result backend.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.core.errors import IdemError
from celery_idem.deadletters.choose import LetterSettings
from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project
from celery_idem.lanes.routing import lanes_of


def look(project: Project) -> Iterator[Finding]:
    given = project.settings_or_error
    if isinstance(given, Exception):
        yield Finding(
            str(given),
            remedy='app.conf.idem = {"lease_s": 30}  # a dict of known settings; in Django '
            "CELERY_IDEM",
            setting="idem",
        )
        return
    for read in (lambda: lanes_of(given), lambda: LetterSettings.from_dict(given.dead_letters)):
        try:
            read()
        except (IdemError, TypeError) as error:
            yield Finding(
                str(error), remedy='app.conf.idem = {"lanes": {"critical": 10, "low": 1}}',
                setting="idem",
            )  # fmt: skip
    if project.idempotent_tasks and project.store_error is not None:
        yield Finding(
            str(project.store_error),
            remedy='app.conf.idem = {"store": "redis://localhost:6379/0"}',
            setting='idem["store"]',
            value=project.store_name,
        )


CHECK = Check("IDEM001", "the settings can't be read", Severity.ERROR, look)
