"""What the admin does with letters: said first, then done as the commands do it, then logged."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType

from celery_idem.deadletters import replay as replaying
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Letter
from celery_idem.deadletters.replay import Fate, How
from celery_idem.django.models import DeadLetter

#: Letters that one request sends or deletes; more are the commands' work.
MOST_AT_ONCE = 500
#: Seconds that a request waits for a canary's end.
CANARY_WAIT_S = 20.0
#: Letters of a group's canary that are offered.
DEFAULT_CANARY = 1

#: Fate → what is said of so many letters, before and after.
WOULD: dict[Fate, str] = {
    Fate.RUN: "will be sent and run",
    Fate.DONE: "will be sent and run nothing: their key is done meanwhile",
    Fate.CONFLICT: "will be kept: their key is being worked on",
    Fate.REVOKED: "will be kept: they were revoked",
    Fate.NO_TASK: "will be kept: this app knows no such task",
    Fate.NOT_REPLAYABLE: "will be kept: they can't be sent again",
    Fate.CHORD_OVER: "will be kept: their chord has failed already",
}
DID: dict[Fate, str] = {
    Fate.RUN: "sent",
    Fate.DONE: "sent; done meanwhile, nothing runs",
    Fate.CONFLICT: "kept: their key is being worked on",
    Fate.REVOKED: "kept: they were revoked",
    Fate.NO_TASK: "kept: this app knows no such task",
    Fate.NOT_REPLAYABLE: "kept: they can't be sent again",
    Fate.CHORD_OVER: "kept: their chord has failed already",
    Fate.TAKEN: "left: another replay has them, or they are gone",
    Fate.FAILED: "kept: the broker did not take them",
}


@dataclass(frozen=True, slots=True)
class Told:
    """What was done, in words; ``well``: all of it."""

    text: str
    well: bool


def chosen(app: Any, wanted: Filter) -> list[Letter]:
    """The filter's letters that one request acts on: the oldest first."""
    found: list[Letter] = []
    for letter in letters_of(app).walk(wanted):
        found.append(letter)
        if len(found) == MOST_AT_ONCE:
            break
    return found


def foretold(app: Any, letters: Iterable[Letter]) -> list[str]:
    """What a replay would do, a line for each fate."""
    report = replaying.dry_run(app, letters)
    return [f"{count} {WOULD[fate]}" for fate, count in report.fates.items()]


def replay(app: Any, user: Any, letters: Sequence[Letter], how: How) -> Told:
    """Send them again. Two requests at once are two operators, one user's too."""
    fates: dict[str, Fate] = {}
    report = replaying.replay(
        app, letters, how, on_progress=lambda letter, fate: fates.update({letter.id: fate})
    )
    _log(user, ((it, CHANGE, f"Replay: {DID[fates[it.id]]}.") for it in letters if it.id in fates))
    parts = [f"{count} {DID[fate]}" for fate, count in report.fates.items()]
    if report.stopped:
        left = len(letters) - len(fates)
        parts.append(
            f"stopped: {report.canary_failures} of the canary died or did not end within "
            f"{how.canary_wait_s:g} s; {left} untouched"
        )
    kept = set(report.fates) - {Fate.RUN, Fate.DONE}
    return Told("; ".join(parts) or "no such letters", not report.stopped and not kept)


def delete(app: Any, user: Any, letters: Sequence[Letter]) -> Told:
    """Delete them for good."""
    store = letters_of(app)
    gone = [it for it in letters if store.delete(it.id)]
    _log(user, ((it, DELETION, f"Deleted ({it.reason.value}).") for it in gone))
    text = f"{len(gone)} deleted"
    if len(gone) < len(letters):
        text += f"; {len(letters) - len(gone)} were gone already"
    return Told(text, len(gone) == len(letters))


def operator(user: Any) -> str:
    """Who replays, as the letter's history says it; one of a kind for each request."""
    return f"{user.get_username()}@admin-{secrets.token_hex(3)}"


def logged(letter_id: str) -> list[Any]:
    """Django's log of a letter, the newest first."""
    entries = LogEntry.objects.filter(content_type=_kind(), object_id=letter_id)
    return list(entries.select_related("user").order_by("-action_time")[:20])


def _log(user: Any, entries: Iterable[tuple[Letter, int, str]]) -> None:
    """Django's own way of writing one differs between its versions; the row does not."""
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=user.pk,
            content_type=_kind(),
            object_id=letter.id,
            object_repr=f"{letter.task} {letter.id}"[:200],
            action_flag=flag,
            change_message=message,
        )
        for letter, flag, message in entries
    )


def _kind() -> ContentType:
    kind: ContentType = ContentType.objects.get_for_model(DeadLetter)
    return kind
