"""What must not share a process with other tests: it runs in a new interpreter.

A pool of processes forks what the test process is, with the threads, connections and hooks that
thousands of tests have left in it: its children were seen not to come up there.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 100.0  #: below the timeout of a test, so that this tells what was printed


def run_alone(function: Callable[..., None], *args: Any) -> None:
    """Call it, with arguments that JSON knows, in a new interpreter; what it raises fails here."""
    command = [sys.executable, "-m", __name__, function.__module__, function.__name__]
    done = subprocess.run(
        [*command, json.dumps(args)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout


if __name__ == "__main__":
    module, name, given = sys.argv[1:]
    getattr(importlib.import_module(module), name)(*json.loads(given))
