"""The example's programs, started as their public starts them."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.support import leftovers
from tests.support.processes import env_without_django, guarded
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 250


class Stage:
    """A module of the example in a process of its own, all of whose descendants can be found. It
    ends with this process, and they end with it (``example_project/family.py``)."""

    def __init__(self, module: str, folder: Path, *options: str, out: int | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.log = folder / "log"
        self.process = subprocess.Popen(
            guarded([sys.executable, "-m", f"example_project.{module}", *options]),
            cwd=ROOT,
            env={
                **env_without_django(), leftovers.ENV: self.mark, "TMPDIR": str(folder),
                "TERM": "xterm-256color", "COLUMNS": "90", "PYTHONIOENCODING": "utf-8",
            },
            stdin=subprocess.DEVNULL,
            stdout=self.log.open("wb") if out is None else out,
            stderr=subprocess.STDOUT if out is None else out,
            start_new_session=True,
        )  # fmt: skip

    def text(self) -> str:
        return self.log.read_text("utf-8")

    def wait_text(self, pattern: str) -> None:
        wait_until(
            lambda: re.search(pattern, self.text()) or self.process.poll() is not None,
            DEADLINE_S,
            lambda: f"{pattern!r} in:\n{self.text()}",
        )
        assert re.search(pattern, self.text()), self.text()

    def left(self) -> list[str]:
        return leftovers.left_behind(self.mark)


@contextlib.contextmanager
def stage(module: str, folder: Path, *options: str, out: int | None = None) -> Iterator[Stage]:
    """It runs inside the block, and has ended with all that it started when that is left."""
    running = Stage(module, folder, *options, out=out)
    try:
        yield running
    finally:
        # the guardian ends last, and what it ends may not show the mark: Redis writes over it
        running.process.kill()
        running.process.wait(30)
        try:
            wait_until(lambda: not running.left(), 30, "the guardian's end")
        finally:
            leftovers.end_all(running.mark)
