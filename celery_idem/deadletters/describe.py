"""What of a letter is told to people: its arguments, its record, and the work around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from celery_idem.binding import binding_of
from celery_idem.core.errors import IdemError
from celery_idem.deadletters.edit import NotEditable, arguments_of
from celery_idem.deadletters.letter import Letter, Message, State, letter_id

#: Relatives of a letter that are told of; a chain may be long.
MOST_RELATIVES = 20

#: How a letter stands, in words.
STATES = {
    State.NEW: "new",
    State.AGAIN: "died again",
    State.EDITED: "edited",
    State.REPLAYING: "being replayed",
    State.NOT_REPLAYABLE: "can't be replayed",
}


@dataclass(frozen=True, slots=True)
class Relative:
    """A task that a letter came from, or that waits for it."""

    role: str
    task: str
    task_id: str

    @property
    def letter(self) -> str:
        """The id that its letter has if it is dead, too."""
        return letter_id_of(self.task_id) if self.task_id else ""


def letter_id_of(task_id: str) -> str:
    """The id of a task's letter."""
    return letter_id(task_id, Message(b""))


def arguments_shown(letter: Letter, how: str) -> Any:
    """Arguments for display, as ``dead_letters["arguments"]`` says."""
    if how == "none":
        return "(not shown)"
    headers = letter.message.headers
    if how == "repr":
        return f"{headers.get('argsrepr', '?')} {headers.get('kwargsrepr', '')}".strip()
    try:
        args, kwargs, _ = arguments_of(letter.message)
    except NotEditable as error:
        return f"({error})"
    return {"args": args, "kwargs": kwargs}


def died(letter: Letter, when: Callable[[int], str | None]) -> str:
    """When, and how often; ``when`` says a time as people are shown it."""
    last = when(letter.last_died_ms) or "unknown"
    if letter.times == 1:
        return last
    return f"{last}, {letter.times} times since {when(letter.first_died_ms)}"


def record_told(app: Any, letter: Letter) -> str:
    """How the record of the letter's key stands, and which steps are done."""
    try:
        record = binding_of(app).store.get(letter.key)
    except IdemError as error:
        return f"record unknown: {error}"
    if record is None:
        return "no record"
    if record.revoked:
        return "revoked"
    return f"record {record.state.value}, done steps: {', '.join(record.steps) or 'none'}"


def relatives(letter: Letter) -> list[Relative]:
    """Where it came from, and what waits for it: nothing of the message is evaluated."""
    found = [it for it in (*_ancestors(letter), *_followers(letter)) if it.task or it.task_id]
    return found[:MOST_RELATIVES]


def _ancestors(letter: Letter) -> Iterator[Relative]:
    headers = letter.message.headers
    parent, root = headers.get("parent_id"), headers.get("root_id")
    if isinstance(parent, str) and parent != letter.task_id:  # a retry is its own parent
        yield Relative("sent by", "", parent)
    if isinstance(root, str) and root not in (letter.task_id, parent):
        yield Relative("first of all", "", root)


def _followers(letter: Letter) -> Iterator[Relative]:
    try:
        _, _, embed = arguments_of(letter.message)
    except NotEditable:
        return
    if not isinstance(embed, Mapping):
        return
    # Celery takes a chain's next task from the end of its list.
    for number, signature in enumerate(reversed(_listed(embed.get("chain")))):
        yield _relative("next in its chain" if number == 0 else "then", signature)
    for signature in _listed(embed.get("callbacks")):
        yield _relative("when it succeeds", signature)
    for signature in _listed(embed.get("errbacks")):
        yield _relative("called when it failed", signature)
    for signature in _listed([embed.get("chord")]):
        yield _relative("when its chord is complete", signature)


def _listed(value: Any) -> list[Mapping[str, Any]]:
    return [it for it in value if isinstance(it, Mapping)] if isinstance(value, list) else []


def _relative(role: str, signature: Mapping[str, Any]) -> Relative:
    options = signature.get("options")
    task_id = options.get("task_id") if isinstance(options, Mapping) else None
    return Relative(role, str(signature.get("task") or ""), str(task_id or ""))
