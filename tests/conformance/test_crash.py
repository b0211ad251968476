"""What a lost process leaves behind."""

from __future__ import annotations

import pytest

from celery_idem.core.record import Ending, State
from tests.conformance.asking import (
    KEY,
    LONG_MS,
    RESULT,
    ask,
    take,
)
from tests.conformance.test_holding import lose

#: between two times of one operation: whole milliseconds, and a server's own rounding
ROUNDING_MS = 5

# --- crash


def test_the_claim_of_a_lost_process_is_free_at_once_and_counted(store):
    take(store, owner="w", task_id="t1")

    assert store.crash(KEY, "w") == 1
    record = store.get(KEY)
    assert (record.state, record.owner, record.lease_until_ms) == (State.FREE, "", 0)
    assert (record.crashes, record.failures, record.releases) == (1, 0, 0)
    next_claim = store.claim(ask(owner="w2", task_id="t1"))
    assert (next_claim.runs, next_claim.crashes, next_claim.crashed) == (2, 1, False)


def test_crashes_add_up(store):
    counts = []
    for n in range(3):
        take(store, owner=f"w{n}", max_crashes=9)
        counts.append(store.crash(KEY, f"w{n}"))

    assert counts == [1, 2, 3]


def test_a_crash_is_counted_once(store):
    take(store, owner="w")
    store.crash(KEY, "w")

    assert store.crash(KEY, "w") is None
    assert store.get(KEY).crashes == 1


def test_the_crash_of_a_loser_is_not_counted_again(store, clock):
    old, new = lose(store, clock)

    assert store.crash(KEY, old.owner) is None
    record = store.get(KEY)
    assert (record.owner, record.crashes) == (new.owner, 1)


@pytest.mark.parametrize("ending", [*Ending, "done"])
def test_who_held_nothing_any_more_did_not_crash(store, ending):
    claim = take(store, owner="w")
    if ending == "done":
        store.complete(claim, RESULT)
    else:
        store.release(claim, ending, LONG_MS)

    assert store.crash(KEY, "w") is None
    assert store.get(KEY).crashes == 0


def test_nobody_crashed_on_a_key_without_a_record(store):
    assert store.crash(KEY, "w") is None
    assert store.get(KEY) is None


def test_the_owner_of_nothing_crashes_nothing(store):
    store.release(take(store), Ending.FAILURE)

    assert store.crash(KEY, "") is None
