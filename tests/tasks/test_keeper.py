"""The lease keeper, asked by its process."""

from __future__ import annotations

import time

from celery_idem.lease import LeaseKeeper
from celery_idem.stores.memory import MemoryStore
from tests.conformance.asking import KEY, LONG_MS, lease_of, take


def test_all_that_is_held_is_renewed_before_a_worker_takes_messages_again() -> None:
    """C24: an outage longer than the lease makes no crash of what still runs."""
    now_us = [0]
    store = MemoryStore(now_us=lambda: now_us[0])
    keeper = LeaseKeeper(lambda: store, clock=lambda: 0.0)  # for it, nothing falls due by itself
    lost: list[object] = []
    keeper.hold(lease_of(take(store)), lost.append)
    now_us[0] = 2 * LONG_MS * 1000

    keeper.renew_now(patience_s=30)

    record = store.get(KEY)
    keeper.stop()
    assert record is not None
    assert record.lease_until_ms == 3 * LONG_MS
    assert not lost


def test_a_keeper_that_holds_nothing_answers_without_a_thread() -> None:
    keeper = LeaseKeeper(MemoryStore, clock=time.monotonic)

    keeper.renew_now(patience_s=3600)

    assert keeper._thread is None
