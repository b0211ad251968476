"""Two apps on one server have records and letters of their own (C04)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_idem.binding import store_of
from celery_idem.core.record import Claimed, ClaimRequest
from celery_idem.deadletters.base import Filter
from celery_idem.deadletters.choose import letters_of
from celery_idem.deadletters.letter import Letter, Message, Reason

REQUEST = ClaimRequest("shop.pay:1", "owner", 60_000, 60_000)


@pytest.fixture
def make_app() -> Iterator[Callable[..., Celery]]:
    apps = []

    def make(**conf: Any) -> Celery:
        app = Celery("apart", set_as_current=False)
        app.conf.update(idem={}, **conf)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.mark.parametrize("of", ["broker", "result_backend"])
def test_a_key_prefix_keeps_two_apps_on_one_database_apart(
    redis_url: str, make_app: Callable[..., Celery], of: str
) -> None:
    brokers = {"broker": redis_url, "result_backend": "amqp://nowhere"}
    first, second = (
        make_app(
            broker_url=brokers[of],
            result_backend=redis_url,
            **{f"{of}_transport_options": {"global_keyprefix": prefix}},
        )
        for prefix in ("{blog}:", "shop_")
    )

    assert isinstance(store_of(first).claim(REQUEST), Claimed)
    assert isinstance(store_of(second).claim(REQUEST), Claimed)
    letters_of(first).put(Letter("one", Reason.FAILURE, Message(b"")))

    assert letters_of(second).page(Filter()) == []
    assert [record.key for record in store_of(first).scan("shop")] == [REQUEST.key]
    names = sorted(store_of(first).client.scan_iter("*"))  # type: ignore[attr-defined]
    assert {name.decode() for name in names} >= {"blog:idem:{shop.pay:1}", "shop_idem:{shop.pay:1}"}
