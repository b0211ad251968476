"""A call by name, or of a plain task, says its lane and its key as any other: none is ignored."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, signals
from kombu import Exchange, Queue

from celery_idem import ConfigError, IdempotentTask, KeyInvalid
from celery_idem.lanes.install import install_lanes
from celery_idem.lanes.routing import LaneRouter
from tests.support.effects import Effects
from tests.support.workers import Worker

APP = "tests.apps.lanes_idem:app"


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("by_name", broker="memory://", set_as_current=False) as app:
        app.conf.idem = {"lanes": {"critical": 10, "low": {"weight": 1, "queue": "bulk"}}}
        app.conf.task_routes = {"first.*": {"queue": "elsewhere"}}
        install_lanes(app)

        @app.task(name="a.plain", shared=False)
        def plain() -> None: ...

        @app.task(name="first.one", shared=False)
        def first() -> None: ...

        @app.task(name="a.keyed", base=IdempotentTask, idem_key="{n}", shared=False)
        def keyed(n: int) -> None: ...

        app.finalize()
        yield app


@pytest.fixture
def sent() -> Iterator[list[dict[str, Any]]]:
    """What is published: its queue, its headers, its properties."""
    found: list[dict[str, Any]] = []

    def note(headers: Any, properties: Any, routing_key: Any, **_: Any) -> None:
        found.append({"queue": routing_key, "headers": dict(headers), "properties": properties})

    signals.before_task_publish.connect(note, weak=False, dispatch_uid="by-name")
    yield found
    signals.before_task_publish.disconnect(dispatch_uid="by-name")


CALLS: dict[str, Callable[[Celery], Any]] = {
    "by name": lambda app: app.send_task("a.keyed", (1,), lane="low", idem_key="k"),
    "a name that is not here": lambda app: app.send_task("b.other", lane="low", idem_key="k"),
    "a signature of a name": lambda app: app.signature("b.other").apply_async(
        lane="low", idem_key="k"
    ),
    "of the task": lambda app: app.tasks["a.keyed"].apply_async((1,), lane="low", idem_key="k"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_goes_to_its_lane_and_takes_its_key_along(
    app: Celery, sent: list[dict[str, Any]], call: str
) -> None:
    CALLS[call](app)

    [message] = sent
    assert message["queue"] == "bulk"
    assert message["headers"]["idem_key"] == "k"
    assert message["headers"]["idem_lane"] == "low"
    assert not {"lane", "idem_key"} & message["properties"].keys()


def test_a_plain_task_goes_to_the_lane_of_its_call_whatever_the_routes_say(
    app: Celery, sent: list[dict[str, Any]]
) -> None:
    app.tasks["a.plain"].apply_async(lane="low")
    app.send_task("first.one", lane="critical")
    app.send_task("first.one")

    assert [message["queue"] for message in sent] == ["bulk", "critical", "elsewhere"]


ROUTED: dict[str, Callable[[Celery], Any]] = {
    "by name": lambda app: app.send_task("far.plain", lane="critical"),
    "of the task": lambda app: app.tasks["far.plain"].apply_async(lane="critical"),
    "a keyed task": lambda app: app.tasks["far.keyed"].apply_async((1,), lane="critical"),
    "its own exchange": lambda app: app.tasks["a.exchange"].apply_async(lane="critical"),
}


@pytest.mark.parametrize("call", ROUTED)
def test_a_lane_wins_over_a_route_and_a_task_that_name_an_exchange(
    app: Celery, sent: list[dict[str, Any]], call: str
) -> None:
    far = Exchange("far", type="topic")
    app.conf.task_queues = [Queue("far", far, "far.#"), Queue("critical", far, "critical.#")]
    app.conf.task_routes = {"far.*": {"exchange": "far", "routing_key": "far.away"}}

    @app.task(name="far.plain", shared=False)
    def plain() -> None: ...

    @app.task(name="far.keyed", base=IdempotentTask, idem_key="{n}", shared=False)
    def keyed(n: int) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Celery 5.7: say it in task_routes

        @app.task(name="a.exchange", exchange="far", routing_key="far.away", shared=False)
        def elsewhere() -> None: ...

    ROUTED[call](app)
    with app.connection_for_read() as connection:
        message = connection.default_channel.basic_get("critical")

    assert message is not None
    assert len(sent) == 1


def test_what_is_wrong_in_a_call_by_name_is_an_error_before_anything_is_sent(
    app: Celery, sent: list[dict[str, Any]]
) -> None:
    with pytest.raises(ConfigError, match="no lane 'lov'; did you mean 'low'"):
        app.send_task("b.other", lane="lov")
    with pytest.raises(KeyInvalid, match="the key is empty"):
        app.send_task("b.other", idem_key=" ")
    with pytest.raises(ConfigError, match="is not one of 0…9"):
        app.send_task("b.other", lane="low", priority=50)

    assert sent == []


PLAIN: dict[str, Callable[[Celery], Any]] = {
    "by name": lambda app: app.send_task("a.plain", idem_key="k"),
    "of the task": lambda app: app.tasks["a.plain"].apply_async(idem_key="k"),
}


@pytest.mark.parametrize("call", PLAIN)
def test_a_key_for_a_task_that_has_none_is_an_error(app: Celery, call: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.plain is no IdempotentTask"):
        PLAIN[call](app)


def test_a_stamp_that_is_called_lane_stays_a_stamp(app: Celery, sent: list[dict[str, Any]]) -> None:
    stamped = app.tasks["a.plain"].s()
    stamped.stamp(lane="left")
    stamped.apply_async()

    assert sent[0]["headers"]["stamps"] == {"lane": "left"}
    assert sent[0]["queue"] == "celery"


def test_what_others_have_put_around_send_task_is_still_called(app: Celery) -> None:
    seen = []

    class Watched(Celery):
        def send_task(self, *args: Any, **options: Any) -> Any:
            seen.append((args[0], options.get("queue")))
            return super().send_task(*args, **options)

    with Watched("watched", broker="memory://", set_as_current=False) as watched:
        watched.conf.idem = {"lanes": {"low": 1}}
        install_lanes(watched)
        install_lanes(watched)
        watched.send_task("b.other", lane="low")

    assert seen == [("b.other", "low")]


def test_lanes_that_are_installed_after_the_first_call_route_plain_tasks_too(
    sent: list[dict[str, Any]],
) -> None:
    with Celery("late", broker="memory://", set_as_current=False) as app:
        app.conf.idem = {"lanes": {"low": 1}}

        @app.task(name="a.plain", lane="low", shared=False)
        def plain() -> None: ...

        plain.delay()
        install_lanes(app)
        plain.delay()

        assert sum(isinstance(it, LaneRouter) for it in app.conf.task_routes) == 1
    assert [message["queue"] for message in sent] == ["celery", "low"]


def test_the_tasks_own_priority_is_looked_at_like_the_calls(app: Celery) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Celery 5.7: say it in task_routes

        @app.task(
            name="a.loud", base=IdempotentTask, lane="critical", priority=50, shared=False,
            lazy=False,
        )  # fmt: skip
        def loud() -> None: ...

    with pytest.raises(ConfigError, match="priority 50 is not one of 0…9"):
        loud.delay()


def test_a_retry_can_be_sent_to_another_lane(
    redis_url: str,
    effects: Effects,
    load_app: Callable[..., ModuleType],
    start_worker: Callable[..., Worker],
) -> None:
    module = load_app("tests.apps.lanes_idem", TEST_BROKER=redis_url)
    start_worker(APP, queues=["critical", "low"], concurrency=1)

    module.degraded.apply_async(("d",), idem_key="given", headers={"tenant": "t1"})

    effects.wait_count("d", 3, 60)

    runs = effects.lines("d")
    assert [run["queue"] for run in runs] == ["critical", "low", "low"]
    assert [run["headers"].get("idem_key") for run in runs] == ["given"] * 3
    assert [run["headers"].get("tenant") for run in runs] == ["t1"] * 3


def test_a_retry_whose_lane_is_none_is_a_failure_and_no_loop(
    redis_url: str,
    effects: Effects,
    load_app: Callable[..., ModuleType],
    start_worker: Callable[..., Worker],
) -> None:
    module = load_app("tests.apps.lanes_idem", TEST_BROKER=redis_url)
    worker = start_worker(APP, queues=["critical"], concurrency=1)

    module.degraded.delay("e", "lov")

    worker.wait_log(r"no lane 'lov'; did you mean 'low'")
    assert len(effects.lines("e")) == 1
