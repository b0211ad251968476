"""The Lua scripts of the transport: one file, one operation, one atomic step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

Arg = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """One ``.lua`` file, as the commands that run it."""

    name: str
    source: bytes = field(init=False, repr=False)
    sha: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        source = files("celery_idem.transport").joinpath(f"lua/{self.name}.lua").read_bytes()
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "sha", hashlib.sha1(source).hexdigest().encode())

    def command(self, keys: Sequence[str], args: Sequence[Arg]) -> tuple[Arg, ...]:
        """``EVALSHA`` with its arguments, to be packed and sent by hand."""
        return (b"EVALSHA", self.sha, len(keys), *keys, *args)

    def __call__(self, client: Any, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run it and wait for the answer; loads it where the server does not know it yet."""
        try:
            return client.execute_command(*self.command(keys, args))
        except NoScriptError:
            return client.execute_command("EVAL", self.source, len(keys), *keys, *args)


PUT = Script("put")
PUT_LATER = Script("put_later")
PROMOTE = Script("promote")
KEEP = Script("keep")
FETCH = Script("fetch")
ACK = Script("ack")
REQUEUE = Script("requeue")
GIVE_BACK = Script("give_back")
REPRIORITISE = Script("reprioritise")
BURY = Script("bury")
JOIN = Script("join")
TICK = Script("tick")
SWEEP = Script("sweep")
AUDIT = Script("audit")
ACCEPT = Script("accept")
ACCEPT_UNACKED = Script("accept_unacked")
ROLL_BACK = Script("roll_back")
STATUS = Script("status")
SIZE = Script("size")
PURGE = Script("purge")


def load(client: Any, *scripts: Script) -> None:
    """Make the server know the scripts, for commands that are sent by hand."""
    for script in scripts:
        client.execute_command("SCRIPT LOAD", script.source)
