"""Answers that a channel has yet to read from its connection, in the order of what it sent."""

from __future__ import annotations

from dataclasses import dataclass

from celery_idem.transport.session import Held


@dataclass(frozen=True, slots=True)
class AckAnswer:
    """An answer that is still to come: to acks."""

    acks: list[Held]


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """An answer that is still to come: to a fetch."""

    queues: list[str]
    picks: list[int]


@dataclass(frozen=True, slots=True)
class BellAnswer:
    """An answer that is still to come: to the wait for a bell."""

    queues: list[str]


@dataclass(frozen=True, slots=True)
class AcceptAnswer:
    """An answer that is still to come: to moving messages out of stock's lists."""


Answer = AckAnswer | FetchAnswer | BellAnswer | AcceptAnswer
