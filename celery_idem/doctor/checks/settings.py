"""The setting `idem` (`CELERY_IDEM` in Django) can't be read, or no store can be chosen from it.

A worker refuses to start with it. The finding names the wrong key or value, and the nearest right
one.

**Mend it:** as the finding says. Every setting has a default that is right for most: the shortest
one is none at all, with Redis as the broker or result backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from celery_idem.binding import binding_of
from celery_idem.core.errors import IdemError
from celery_idem.core.settings import Settings
from celery_idem.deadletters.choose import LetterSettings, open_letters
from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project
from celery_idem.lanes.routing import lanes_of


def look(project: Project) -> Iterator[Finding]:
    given = project.settings_or_error
    if isinstance(given, Exception):
        yield _finding(given)
        return
    for read in _readings(project, given):
        try:
            read()
        except (IdemError, TypeError) as error:
            yield _finding(error)


def _readings(project: Project, given: Settings) -> Iterator[Callable[[], object]]:
    """What a worker reads of the settings. Stores are opened, which connects nothing."""
    yield lambda: lanes_of(given)
    letters = dict(given.dead_letters)
    yield lambda: LetterSettings.from_dict(letters)
    around = binding_of(project.app).surroundings
    if project.idempotent_tasks or given.store:
        if project.store_error is not None:
            yield lambda: _raise(project.store_error)
            return  # letters are kept there, too, unless told otherwise
    if project.idempotent_tasks or letters.get("store"):
        yield lambda: open_letters(around, _letter_settings(letters), 0).close()


def _letter_settings(given: dict[str, object]) -> LetterSettings:
    try:
        return LetterSettings.from_dict(given)
    except (IdemError, TypeError):
        return LetterSettings()  # said already


def _raise(error: IdemError | None) -> None:
    if error is not None:
        raise error


def _finding(error: Exception) -> Finding:
    return Finding(
        str(error),
        remedy="put it right in app.conf.idem (in Django: CELERY_IDEM)",
        setting="idem",
    )


CHECK = Check("IDEM001", "the settings can't be read", Severity.ERROR, look)
