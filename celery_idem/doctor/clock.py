"""A remote-control command that tells a worker's clock: what ``inspect`` asks of all of them."""

from __future__ import annotations

import time
from typing import Any

from celery.worker.control import inspect_command

#: Name of the command.
COMMAND = "idem_clock"


@inspect_command()
def idem_clock(state: Any) -> dict[str, float]:
    """This worker's clock, in seconds since 1970."""
    return {"time_s": time.time()}
