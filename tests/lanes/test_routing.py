"""Which lane a message goes to, and clear answers for those that go to none."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_idem.core.errors import ConfigError
from celery_idem.core.settings import Settings
from celery_idem.lanes.install import install_lanes
from celery_idem.lanes.routing import SENT_HEADER, LaneRouter, route_for, sent_s
from tests.lanes.conftest import LaneRun

SETTINGS = Settings.from_dict({"lanes": {"critical": 10, "low": {"weight": 1, "queue": "bulk"}}})


def test_a_lane_names_the_queue_and_is_noted_in_a_header() -> None:
    routed = route_for("low", SETTINGS, {"countdown": 5, "headers": {"mine": 1}})

    assert routed == {
        "countdown": 5,
        "queue": "bulk",
        "headers": {"mine": 1, "idem_lane": "low"},
    }


@pytest.mark.parametrize("place", [{"queue": "x"}, {"exchange": "x"}, {"routing_key": "x"}])
def test_a_destination_that_is_given_wins(place: dict[str, str]) -> None:
    assert route_for("low", SETTINGS, place) == place


def test_an_unknown_lane_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no lane 'critcal'; did you mean 'critical'"):
        route_for("critcal", SETTINGS, {})


def test_a_lane_without_any_configured_is_an_error_that_says_how() -> None:
    with pytest.raises(ConfigError, match=r"no lanes are configured; set idem\['lanes'\]"):
        route_for("critical", Settings(), {})


@pytest.mark.parametrize("priority", [-3, 10, 50, 1.5, "high"])
def test_c27_a_priority_that_brokers_would_clamp_is_refused(priority: object) -> None:
    with pytest.raises(ConfigError, match="is not one of 0…9"):
        route_for("critical", SETTINGS, {"priority": priority})


@pytest.mark.parametrize("priority", [None, 0, 9])
def test_c27_a_priority_that_brokers_know_is_passed_on(priority: int | None) -> None:
    assert route_for("critical", SETTINGS, {"priority": priority})["priority"] == priority


@pytest.mark.parametrize("headers", [None, {}, {SENT_HEADER: "soon"}, {SENT_HEADER: True}])
def test_a_message_without_a_sending_time_has_none(headers: dict | None) -> None:  # type: ignore[type-arg]
    assert sent_s(headers) is None


def make_app() -> Celery:
    app = Celery("routing", broker="memory://", set_as_current=False)
    app.conf.idem = {"lanes": {"critical": 10, "low": 1}}
    app.conf.task_routes = {"first.*": {"queue": "elsewhere"}}
    install_lanes(app)

    @app.task(name="a.plain", lane="low", shared=False)
    def plain() -> None: ...

    @app.task(name="first.one", lane="low", shared=False)
    def first() -> None: ...

    app.finalize()
    return app


def routed_queue(app: Celery, name: str, **options: str) -> str:
    route = app.amqp.router.route(options, name, (), {}, app.tasks[name])
    return str(route["queue"].name)


def test_a_plain_task_with_a_lane_is_routed_to_it() -> None:
    with make_app() as app:
        assert routed_queue(app, "a.plain") == "low"


def test_the_apps_own_routes_come_first() -> None:
    with make_app() as app:
        assert routed_queue(app, "first.one") == "elsewhere"


def test_a_queue_in_the_call_wins_over_the_tasks_lane() -> None:
    with make_app() as app:
        assert routed_queue(app, "a.plain", queue="critical") == "critical"


def test_plain_tasks_can_be_routed_by_pattern() -> None:
    with make_app() as app:
        router = LaneRouter(app, {"reports.*": "low"})

        assert router("reports.daily", (), {}, {}) == {"queue": "low"}
        assert router("payments.take", (), {}, {}) is None


@pytest.mark.parametrize("priority", [-3, 10, 50])
def test_c27_a_plain_task_in_a_lane_can_have_no_priority_that_brokers_would_clamp(
    priority: int,
) -> None:
    with make_app() as app, pytest.raises(ConfigError, match="is not one of 0…9"):
        app.tasks["a.plain"].apply_async(priority=priority)


def test_installing_twice_adds_one_router() -> None:
    with make_app() as app:
        install_lanes(app)

        assert sum(isinstance(it, LaneRouter) for it in app.conf.task_routes) == 1


def test_a_message_says_when_it_was_sent_and_a_plain_task_goes_to_its_lane(
    lanes: LaneRun,
) -> None:
    module = lanes.configure()
    module.low_by_itself.apply_async(("x",))

    lanes.worker("low")

    lanes.effects.wait_count("x", 1)


def test_a_retry_stays_in_the_lane_that_its_message_came_from(lanes: LaneRun) -> None:
    module = lanes.configure()
    module.flaky.apply_async(("x",), queue="normal")

    lanes.worker()
    lanes.effects.wait_count("x", 2)

    assert [line["queue"] for line in lanes.effects.lines("x")] == ["normal", "normal"]


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.rabbitmq
def test_a_queue_that_is_no_lane_is_served_and_said(lanes: LaneRun) -> None:
    lanes.configure()
    lanes.send("other", 20)
    lanes.send("critical", 20)

    worker = lanes.worker("critical", "other")
    lanes.effects.wait_count("other", 20)
    lanes.effects.wait_count("critical", 20)

    worker.wait_log("queue 'other' is no lane: it is served as one of weight 1")


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_more_reserved_than_there_are_processes_is_said(lanes: LaneRun) -> None:
    lanes.configure({"critical": {"reserve": 2}, "low": 1})
    lanes.send("low", 3)

    worker = lanes.worker("critical", "low", concurrency=2)

    worker.wait_log("lanes reserve 2 processes and this worker has 2: lanes ranked below keep one")
    lanes.effects.wait_count("low", 3)
