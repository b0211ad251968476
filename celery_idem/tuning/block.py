"""The proposals as lines to paste: Celery's configuration, or Django's settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from celery_idem.tuning.facts import LaneFacts, Proposal

_APP_PLACES = ("idem", "broker_transport_options", "conf")
_OF_LANES = ("reserve", "weight")
_LIMITS = ("time_limit", "soft_time_limit")


def block(
    proposals: Sequence[Proposal],
    lanes: Sequence[LaneFacts],
    *,
    django: bool = False,
    annotations_merge: bool = True,
) -> str:
    """Only what changes; empty when everything fits. What is set already and not proposed stays.

    ``annotations_merge=False``: ``task_annotations`` is no dict, so what belongs to single tasks is
    said in comments.
    """
    changes = [proposal for proposal in proposals if proposal.changes]
    lines = [*_app_lines(changes, lanes, django)]
    tasks: dict[str, dict[str, Any]] = {}
    for p in changes:
        if _room(p) == "task":
            tasks.setdefault(p.place, {})[p.setting] = p.proposed
    if tasks:
        lines += _annotations(tasks, django) if annotations_merge else _comments(tasks)
    return "\n".join(lines)


def _room(proposal: Proposal) -> str:
    """Where it goes. A task may have the name of a lane's place, or of a setting."""
    if proposal.place in _APP_PLACES and proposal.setting not in _LIMITS:
        return proposal.place
    if proposal.place.startswith("lanes.") and proposal.setting in _OF_LANES:
        return "lanes"
    return "task"


def _app_lines(
    changes: Sequence[Proposal], lanes: Sequence[LaneFacts], django: bool
) -> Iterator[str]:
    idem: dict[str, Any] = {p.setting: p.proposed for p in changes if _room(p) == "idem"}
    if any(_room(p) == "lanes" for p in changes):
        idem["lanes"] = _lanes(changes, lanes)
    yield from _update("idem", idem, django)
    options = {p.setting: p.proposed for p in changes if _room(p) == "broker_transport_options"}
    yield from _update("broker_transport_options", options, django)
    for p in changes:
        if _room(p) == "conf":
            yield f"{_name(p.setting, django)} = {json.dumps(_plain(p.proposed))}"


def _annotations(tasks: dict[str, dict[str, Any]], django: bool) -> Iterator[str]:
    """A task's other annotations stay, as those of other tasks do."""
    yield f"_annotations = {_given('task_annotations', django)} or {{}}"
    yield f"{_name('task_annotations', django)} = {{"
    yield "    **_annotations,"
    for task, values in tasks.items():
        said = ", ".join(f"{json.dumps(k)}: {json.dumps(_plain(v))}" for k, v in values.items())
        name = json.dumps(task)
        yield f"    {name}: {{**_annotations.get({name}, {{}}), {said}}},"
    yield "}"


def _comments(tasks: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield "# task_annotations is no dict: to be set in it, or on the tasks"
    for task, values in tasks.items():
        yield f"# {task}: {', '.join(f'{k}={json.dumps(_plain(v))}' for k, v in values.items())}"


def _lanes(changes: Sequence[Proposal], lanes: Sequence[LaneFacts]) -> dict[str, Any]:
    """All lanes, since the setting is one dict: as they are, with the changes in it."""
    found: dict[str, Any] = {}
    for facts in lanes:
        if facts.lane is None:
            continue
        lane = facts.lane
        given: dict[str, Any] = {"weight": lane.weight}
        if lane.queue != lane.name:
            given["queue"] = lane.queue
        if lane.reserve:
            given["reserve"] = lane.reserve
        if lane.deadline_s is not None:
            given["deadline"] = lane.deadline_s
        mine = [p for p in changes if p.place == f"lanes.{lane.name}" and _room(p) == "lanes"]
        given.update({p.setting: p.proposed for p in mine})
        found[lane.name] = given["weight"] if list(given) == ["weight"] else given
    return found


def _update(setting: str, values: dict[str, Any], django: bool) -> Iterator[str]:
    """A dict that may hold more: its other keys stay."""
    if values:
        name = _name(setting, django)
        yield f"{name} = {{"
        yield f"    **({_given(setting, django)} or {{}}),"
        yield from _items(values)
        yield "}"


def _items(values: dict[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield f"    {json.dumps(name)}: {json.dumps(_plain(value))},"


def _plain(value: Any) -> Any:
    """Whole numbers without a point."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _given(setting: str, django: bool) -> str:
    """What is set already, if anything: Django's settings are names of a module."""
    return f'globals().get("{_name(setting, True)}")' if django else f'app.conf.get("{setting}")'


def _name(setting: str, django: bool) -> str:
    if setting == "idem":
        return "CELERY_IDEM" if django else "app.conf.idem"
    return f"CELERY_{setting.upper()}" if django else f"app.conf.{setting}"
