"""The server's clock went back, as after a fail-over to a slower one: a fence grows all the same,
and a dead holder's lease does not last as long as the clock was ahead."""

from __future__ import annotations

import pytest

from celery_idem.core.record import Claimed, Held
from celery_idem.stores.redis.store import RedisStore
from tests.conformance.asking import KEY, LONG_MS, ask, take

#: a quarter of an hour: how far the old server's clock was ahead, in microseconds
AHEAD_US = 900_000_000


def test_a_fence_grows_although_the_clock_went_back_on_redis(redis_url):
    store = RedisStore.from_url(redis_url)
    ahead = take(store, owner="w1").fence + AHEAD_US
    store.client.hset(store._name(KEY).decode(), "fe", str(ahead))
    store.crash(KEY, "w1")

    granted = store.claim(ask(owner="w2", task_id="t2"))

    assert isinstance(granted, Claimed)
    assert granted.claim.fence == store.get(KEY).fence == ahead + 1
    store.close()


@pytest.mark.parametrize("forgotten", [False, True], ids=["crashed", "forgotten"])
def test_a_fence_grows_although_the_clock_went_back_in_a_database(django_databases, forgotten):
    from celery_idem.django.models import KeyRecord
    from celery_idem.django.store import DjangoStore
    from tests.django.databases import emptied

    alias = django_databases("sqlite")
    emptied(alias)
    store = DjangoStore(alias)
    ahead = take(store, owner="w1").fence + AHEAD_US
    KeyRecord.objects.using(alias).update(fence=ahead)
    if forgotten:
        store.forget(KEY)
    else:
        store.crash(KEY, "w1")

    granted = store.claim(ask(owner="w2", task_id="t2"))

    assert isinstance(granted, Claimed)
    assert granted.claim.fence == store.get(KEY).fence == ahead + 1
    store.close()


def test_a_lease_from_before_the_clock_went_back_begins_anew_on_redis(redis_url):
    store = RedisStore.from_url(redis_url)
    take(store, owner="w1")
    until_ms = store.get(KEY).lease_until_ms
    store.client.hset(store._name(KEY).decode(), "lu", str(until_ms + AHEAD_US // 1000))

    held = store.claim(ask(owner="w2", task_id="t2"))

    assert isinstance(held, Held)
    assert held.remaining_ms <= LONG_MS
    assert until_ms <= store.get(KEY).lease_until_ms < until_ms + AHEAD_US // 1000
    store.close()


def test_a_lease_from_before_the_clock_went_back_begins_anew_in_a_database(django_databases):
    from celery_idem.django.models import KeyRecord
    from celery_idem.django.store import DjangoStore
    from tests.django.databases import emptied

    alias = django_databases("sqlite")
    emptied(alias)
    store = DjangoStore(alias)
    take(store, owner="w1")
    until_ms = store.get(KEY).lease_until_ms
    ahead_ms = until_ms + AHEAD_US // 1000
    KeyRecord.objects.using(alias).update(lease_until_ms=ahead_ms)

    held = store.claim(ask(owner="w2", task_id="t2"))

    assert isinstance(held, Held)
    assert held.remaining_ms <= LONG_MS
    assert until_ms <= store.get(KEY).lease_until_ms < until_ms + AHEAD_US // 1000
    store.close()
