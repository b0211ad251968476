"""Waiting for an event, with a deadline. The only place of the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02  #: pause between two looks, in seconds


class DeadlineMissed(AssertionError):
    """What was waited for did not happen in time."""


def wait_until(
    predicate: Callable[[], T | None],
    deadline_s: float = 30.0,
    what: str | Callable[[], str] = "the condition",
) -> T:
    """Look at ``predicate`` every 20 ms until it is true; return its value.

    ``what`` names the event in the error; give a callable when the text is worth
    computing only then (a log's tail). Raises ``DeadlineMissed`` after ``deadline_s``.
    """
    end = time.monotonic() + deadline_s
    while True:
        if value := predicate():
            return value
        if time.monotonic() > end:
            text = what() if callable(what) else what
            raise DeadlineMissed(f"waited {deadline_s:g} s in vain for {text}")
        time.sleep(POLL_S)
