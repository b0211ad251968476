"""One suspect at a time in a process (C41).

When a process dies, every job that ran in it has lost its claim, and the store can't tell the pill
from its neighbours: each gets one crash. From then on each is a suspect, and a process runs one
suspect at a time: so the next death is counted for one of them only, and the neighbours never
reach ``max_crashes``. In prefork a process runs one job anyway.
"""

from __future__ import annotations

import os
import threading

_alone = threading.Lock()


def enter() -> bool:
    """Whether this suspect may run now; then :func:`leave` must be called."""
    return _alone.acquire(blocking=False)


def leave() -> None:
    """The suspect has ended without a crash of its process."""
    _alone.release()


def _forget() -> None:
    # Forked while a thread of the parent ran a suspect: that thread is not here.
    global _alone
    _alone = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
