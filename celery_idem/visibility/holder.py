"""A holder: the deliveries that one consumer channel has out, and the name they are kept under."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection
from typing import Any


class Holder:
    """Which deliveries are open. Changed by the consumer's thread (and by pool threads that ack),
    copied by the keeper's; every change is one step of a dict, so it needs no lock."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        #: delivery tag → message, from its record to its ack
        self.open: dict[str, Any] = {}
        #: tag → when its task was first seen to be over, though nobody acked (closed holders only)
        self._over_since: dict[str, float] = {}
        #: the channel is gone; what is still open belongs to tasks that run on
        self.closed = False
        self._numbers = itertools.count(1)

    def next_tag(self) -> str:
        """A tag for one delivery, never used before; tags of a holder sort by age.

        kombu delivers a message again under its old tag, so an ack by the worker that had it
        before would remove the record of the one that has it now (C60).
        """
        return f"{self.id}:{next(self._numbers):010x}"

    def close(self, running: Collection[str]) -> dict[str, Any]:
        """The channel is gone. Keeps what tasks work on still, and returns what has to go back."""
        self.closed = True
        back = {tag: msg for tag, msg in self.open.copy().items() if tag not in running}
        for tag in back:
            self.open.pop(tag, None)
        return back

    def forgotten(self, running: Collection[str], now: float, patience_s: float) -> list[str]:
        """What no task works on any more, and nobody acked for ``patience_s`` after that.

        A net for a task that ends without an ack: its message goes back like a dead worker's.
        """
        over = {tag: self._over_since.get(tag, now) for tag in self.open.copy()}
        self._over_since = {tag: since for tag, since in over.items() if tag not in running}
        return [tag for tag, since in self._over_since.items() if now - since > patience_s]

    def lose(self, tags: Collection[str]) -> dict[str, Any]:
        """These were given to others: forget them, and return those that were open."""
        found = {tag: self.open.pop(tag, None) for tag in tags}
        return {tag: message for tag, message in found.items() if message is not None}
