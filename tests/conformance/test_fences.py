"""A fence grows although the server's clock went back: after a fail-over to a slower one."""

from __future__ import annotations

import pytest

from celery_idem.core.record import Claimed
from celery_idem.stores.redis.store import RedisStore
from tests.conformance.asking import KEY, ask, take

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
