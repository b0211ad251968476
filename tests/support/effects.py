"""A ledger of effects outside broker and store: what tasks really did, whoever counts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until

ENV = "TEST_EFFECTS"  #: name of the variable by which tasks in a worker find the ledger


class Effects:
    """An append-only file of JSON lines; each ``bump`` is one ``write`` with O_APPEND.

    So lines of several processes never mix, and a line that is there survives any kill
    of the process that wrote it.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def from_env(cls) -> Effects:
        """The ledger of this worker. KeyError where the test gave none."""
        return cls(os.environ[ENV])

    def bump(self, key: str, **fields: Any) -> None:
        """Note that the effect ``key`` happened now, in this process."""
        line = {
            "key": key,
            "pid": os.getpid(),
            "monotonic": time.monotonic(),
            "wall": time.time(),
            **fields,
        }
        data = json.dumps(line, default=str).encode() + b"\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.write(handle, data) != len(data):
                raise OSError(f"short write to {self.path}")
        finally:
            os.close(handle)

    def lines(self, key: str | None = None) -> list[dict[str, Any]]:
        """All lines in order of writing, or those of one key."""
        if not self.path.exists():
            return []
        whole = self.path.read_bytes().split(b"\n")[:-1]  # a last piece without its end: not yet
        lines = [json.loads(line) for line in whole]
        return [line for line in lines if key is None or line["key"] == key]

    def keys(self) -> list[str]:
        """The keys in order of writing, repeated as often as they happened."""
        return [line["key"] for line in self.lines()]

    def count(self, key: str) -> int:
        """How often the effect ``key`` happened."""
        return len(self.lines(key))

    def wait_for(
        self,
        predicate: Callable[[Effects], Any],
        deadline_s: float = 30.0,
        what: str = "the effects",
    ) -> None:
        """Wait until ``predicate(self)`` is true; the error shows the last keys."""
        wait_until(
            lambda: bool(predicate(self)),
            deadline_s,
            lambda: f"{what}; seen: {self.keys()[-20:]}",
        )

    def wait_count(self, key: str, count: int, deadline_s: float = 30.0) -> None:
        """Wait until the effect ``key`` happened at least ``count`` times."""
        self.wait_for(lambda it: it.count(key) >= count, deadline_s, f"{count} times {key!r}")
