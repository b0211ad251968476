"""Where things lie in Redis. The names are part of the protocol: docs/streams-protocol.md."""

from __future__ import annotations

from dataclasses import dataclass

from celery_idem.stores.redis.pattern import glob_of

#: Name of the consumer group of every stream.
GROUP = "w"
#: Step of what was given back or taken over: looked at before every priority.
FRONT = "f"
#: Steps that a lane can have besides the front one: a digit each.
ALL_STEPS = tuple("0123456789")


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of all keys under one prefix (``global_keyprefix`` and ``stream_prefix``).

    A lane's name is in braces, so that all keys of one lane are in one slot of a cluster.
    """

    prefix: str = "rs:"

    @property
    def leases(self) -> str:
        """Sorted set: session → the server's time at which its lease is over, in ms."""
        return f"{self.prefix}leases"

    @property
    def pulse(self) -> str:
        """The server's time at the last renewal of any lease, in ms: has its clock gone back?"""
        return f"{self.prefix}pulse"

    @property
    def dying(self) -> str:
        """Sorted set of sessions whose messages are being taken over."""
        return f"{self.prefix}dying"

    @property
    def due(self) -> str:
        """Sorted set: lane → when its first delayed message is due, in ms."""
        return f"{self.prefix}due"

    @property
    def wake(self) -> str:
        """List with at most one element: something became due earlier than was known."""
        return f"{self.prefix}wake"

    @property
    def session_prefix(self) -> str:
        return f"{self.prefix}session:"

    def session_lanes(self, session: str) -> str:
        """Set of the lanes of which a session may hold messages."""
        return f"{self.session_prefix}{session}"

    def lane(self, queue: str) -> str:
        """What the keys of a queue begin with: ``:0`` … ``:9``, ``:f``, ``:d``, ``:bell``."""
        return f"{self.prefix}{{{queue}}}"

    def queue(self, lane: str) -> str:
        """The queue of a lane's key."""
        return lane[len(self.prefix) + 1 : -1]

    @property
    def any_lane(self) -> str:
        """Pattern (SCAN's) of what the keys of all queues begin with."""
        return f"{glob_of(self.prefix)}{{*}}"

    def stream(self, lane: str, step: str) -> str:
        return f"{lane}:{step}"
