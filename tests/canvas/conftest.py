"""What tests of workflows share: a look at the ledger, and at a broker that came to rest."""

from __future__ import annotations

import uuid
from collections import Counter

from tests.support.waiting import wait_until
from tests.tasks.stage import Stage

DEADLINE_S = 60


def names(count: int) -> list[str]:
    """Labels of this test's own."""
    mark = uuid.uuid4().hex[:6]
    return [f"{letter}-{mark}" for letter in "abcdef"[:count]]


def effects_of(stage: Stage, *labels: str) -> dict[str, int]:
    """How often each of them happened."""
    seen = Counter(stage.effects.keys())
    return {label: seen[label] for label in labels}


def wait_quiet(stage: Stage) -> None:
    """Nothing waits in a queue, and nothing is held by a worker."""
    with stage.server.client() as client:
        wait_until(
            lambda: client.llen("celery") == 0 and client.hlen("unacked") == 0,
            DEADLINE_S,
            "an empty queue and no delivery",
        )
