"""Which chord a letter decides on, whatever serializer its message came by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kombu.serialization import dumps, registry

from celery_idem.deadletters.chords import parts_of
from celery_idem.deadletters.letter import Message

HEADERS = {"id": "member", "group": "g1"}
LAST: dict[str, Any] = {"options": {"task_id": "last", "group_id": "g2", "chord": {"task": "body"}}}
EMBED = {"chord": {"task": "body"}, "chain": [LAST, {"options": {"task_id": "between"}}]}


def message(serializer: str = "json") -> Message:
    content_type, encoding, body = dumps(([1], {}, EMBED), serializer=serializer)
    raw = body.encode() if isinstance(body, str) else body
    return Message(raw, content_type, encoding, HEADERS)


def test_a_member_and_the_end_of_its_chain_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in what needs a package that may not be here: JSON is YAML, so it stands for it."""
    yaml = "application/x-yaml"
    monkeypatch.setitem(registry._decoders, yaml, registry._decoders["application/json"])

    for content_type in ("application/json", yaml):
        found = parts_of(replace(message(), content_type=content_type))
        assert found == [("g1", "member"), ("g2", "last")], content_type


def test_what_only_evaluating_could_read_is_not_read() -> None:
    assert parts_of(message("pickle")) == []
    assert parts_of(Message(b"text", "text/plain", "utf-8", HEADERS)) == []
