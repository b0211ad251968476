"""A worker whose wall clock is wrong: a preload library, built with the system's compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_skew.c")


def missing_for_clock_skew() -> str | None:
    """Why the clock can't be moved here; None when it can."""
    if sys.platform != "linux":
        return "moving a process's clock needs Linux (LD_PRELOAD)"
    if shutil.which("cc") is None:
        return "no C compiler (cc) to build the clock preload"
    return None


class ClockSkew:
    """The clock of the processes started with ``env``; ``set`` moves it at any time.

    Only the wall clock moves; monotonic time, timers and sleeps stay right.
    """

    def __init__(self, directory: Path, skew_s: float = 0.0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.library = directory / "clock_skew.so"
        self.file = directory / "clock_skew_s"
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(self.library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        self.set(skew_s)

    @property
    def env(self) -> dict[str, str]:
        """To be merged into the environment of the process whose clock it is."""
        return {"LD_PRELOAD": str(self.library), "CLOCK_SKEW_FILE": str(self.file)}

    def set(self, skew_s: float) -> None:
        """Move the clock to real time + ``skew_s`` seconds (negative: it is late)."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(f"{skew_s:.9f}")
        os.replace(fresh, self.file)
