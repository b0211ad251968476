"""The proposals as lines to paste: Celery's configuration, or Django's settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from celery_idem.tuning.facts import LaneFacts, Proposal


def block(
    proposals: Sequence[Proposal], lanes: Sequence[LaneFacts], *, django: bool = False
) -> str:
    """Only what changes; empty when everything fits."""
    changes = [proposal for proposal in proposals if proposal.changes]
    return "\n".join(_lines(changes, lanes, django))


def _lines(changes: Sequence[Proposal], lanes: Sequence[LaneFacts], django: bool) -> Iterator[str]:
    idem: dict[str, Any] = {p.setting: p.proposed for p in changes if p.place == "idem"}
    if any(p.place.startswith("lanes.") for p in changes):
        idem["lanes"] = _lanes(changes, lanes)
    yield from _update("idem", idem, django)
    options = {p.setting: p.proposed for p in changes if p.place == "broker_transport_options"}
    yield from _update("broker_transport_options", options, django)
    for p in changes:
        if p.place == "conf":
            yield f"{_name(p.setting, django)} = {json.dumps(_plain(p.proposed))}"
    tasks: dict[str, dict[str, Any]] = {}
    for p in changes:
        if p.place not in ("idem", "broker_transport_options", "conf") and not _is_lane(p):
            tasks.setdefault(p.place, {})[p.setting] = p.proposed
    yield from _update("task_annotations", tasks, django)


def _is_lane(proposal: Proposal) -> bool:
    return proposal.place.startswith("lanes.")


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
        given.update({p.setting: p.proposed for p in changes if p.place == f"lanes.{lane.name}"})
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
