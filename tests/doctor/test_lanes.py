"""IDEM030 to IDEM034: prefetch, order, queues and reserves of lanes, as far as nobody is asked."""

from __future__ import annotations

import textwrap

import pytest

LANES = "app.conf.idem = {'lanes': {'critical': 10, 'normal': 5, 'low': 1}, 'store': 'memory'}\n"
TASK = "@app.task(base=IdempotentTask, lane='low')\ndef one(): ...\n"


@pytest.mark.parametrize(("multiplier", "found"), [(1, []), (4, []), (8, ["8"]), (0, ["0"])])
def test_a_prefetch_that_was_tuned_in_vain_is_found(project, multiplier, found):
    examined = project(f"{LANES}app.conf.worker_prefetch_multiplier = {multiplier}\n{TASK}")

    assert [it.finding.value for it in examined.report("IDEM030").found] == found


def test_without_lanes_any_prefetch_is_right(project):
    assert project(f"app.conf.worker_prefetch_multiplier = 64\n{TASK[:0]}").found("IDEM030") == []


def test_lanes_on_a_broker_that_fetches_in_batches_are_found(project):
    (found,) = project(LANES + TASK, broker="sqs://").report("IDEM030").found

    assert "on sqs a worker prefetches" in found.finding.message


def test_lanes_that_nothing_installs_are_found(project):
    plain = "@app.task(lane='low')\ndef one(): ...\n"
    installed = "from celery_idem.lanes.install import install_lanes\ninstall_lanes(app)\n"

    (found,) = project(LANES + plain).report("IDEM030").found

    assert "nothing installs them" in found.finding.message
    assert project(LANES + plain + installed).found("IDEM030") == []


def test_strict_order_over_several_lanes_is_found_s_p2(project):
    """S-P2: the lower lane is not served slowly, but never."""
    order = "app.conf.idem = {{'lanes': {lanes}, 'lane_order': '{order}'}}\n"

    strict = project(order.format(lanes={"high": 1, "low": 1}, order="strict"))
    weighted = project(order.format(lanes={"high": 1, "low": 1}, order="weighted"))
    single = project(order.format(lanes={"high": 1}, order="strict"))

    (found,) = strict.report("IDEM031").found
    assert found.finding.message == "while 'high' has work, 'low' never run"
    assert weighted.found("IDEM031") == single.found("IDEM031") == []


@pytest.mark.parametrize(("strategy", "first"), [("priority", "normal"), ("sorted", "low")])
def test_kombus_strict_strategies_are_found(project, strategy, first):
    examined = project(
        f"""
        from kombu import Queue
        app.conf.task_queues = [Queue("normal"), Queue("low")]
        app.conf.broker_transport_options = {{"queue_order_strategy": {strategy!r}}}
        """
    )

    (found,) = examined.report("IDEM031").found

    assert found.finding.message.startswith(f"while '{first}' has work")


ROUTED = """
    @app.task
    def default(): ...

    @app.task(lane="low")
    def in_a_lane(): ...

    @app.task(queue="reports")
    def in_a_queue(): ...

    @app.task(queue="normal")
    def in_a_lanes_queue(): ...

    @app.task
    def by_route(): ...
    """


@pytest.mark.filterwarnings("ignore:The 'queue' task attribute")
def test_tasks_that_go_to_no_lane_are_found(project):
    routed = textwrap.dedent(ROUTED)
    route = "app.conf.task_routes = {'*.by_route': {'queue': 'elsewhere'}}\n"
    into_lane = "app.conf.task_routes = ([('*.by_route', 'low')],)\n"
    in_default = "app.conf.task_default_queue = 'normal'\n"

    assert project(LANES + route + routed).found("IDEM033") == [
        ("IDEM033", "by_route"), ("IDEM033", "default"), ("IDEM033", "in_a_queue"),
    ]  # fmt: skip
    assert project(LANES + into_lane + in_default + routed).found("IDEM033") == [
        ("IDEM033", "in_a_queue")
    ]
    assert project(routed).found("IDEM033") == []


@pytest.mark.filterwarnings("ignore:The 'queue' task attribute")
def test_a_router_that_is_a_function_is_not_called_and_its_tasks_are_left_out(project):
    examined = project(
        LANES
        + "def route(name, *args, **kwargs):\n    raise AssertionError('called')\n"
        + "app.conf.task_routes = [route]\n"
        + textwrap.dedent(ROUTED)
    )

    assert examined.found("IDEM033") == [("IDEM033", "in_a_queue")]


def test_a_declared_queue_that_is_no_lane_is_found(project):
    examined = project(
        LANES
        + "from kombu import Queue\n"
        + "app.conf.task_queues = [Queue(n) for n in ('critical', 'normal', 'low', 'bulk')]\n"
    )

    (found,) = examined.report("IDEM033").found

    assert (found.finding.setting, found.finding.value) == ("task_queues", "bulk")


@pytest.mark.parametrize(
    ("routes", "found"),
    [
        ({"s.*": "other", "s.pay": "critical"}, []),
        ({"s.*": "critical", "s.pay": "other"}, ["s.pay"]),
        ({"s.*": "other", "s.pay": {"queue": "critical"}, "*": "low"}, []),
        ({"s.p?y": "other", "*": "low"}, []),  # no pattern without a star
        ([{"s.p*": "low"}, {"s.pay": "other"}], []),
    ],
)
def test_routes_are_looked_up_as_celery_does_exact_names_first(project, routes, found):
    task = '@app.task(name="s.pay")\ndef pay(): ...\n'
    examined = project(f"{LANES}app.conf.task_routes = {routes!r}\n{task}")

    by_celery = examined.app.amqp.router.route({}, "s.pay")["queue"].name
    report = examined.report("IDEM033")

    assert [it.finding.task for it in report.found] == found
    assert (by_celery == "other") is bool(found)


@pytest.mark.parametrize(
    "queues",
    [
        "[Queue('critical'), Queue('bulk')]",
        "{'critical': Queue('critical'), 'bulk': Queue('bulk')}",
        "{'critical': {'exchange': 'critical'}, 'bulk': {'exchange': 'bulk'}}",
    ],
)
def test_declared_queues_are_a_list_or_a_dict_as_in_celery(project, queues):
    head = f"from kombu import Queue\napp.conf.task_queues = {queues}\n"
    strict = "app.conf.broker_transport_options = {'queue_order_strategy': 'priority'}\n"

    with_lanes = project(LANES + head).report("IDEM033")
    without = project(head + strict).report("IDEM031")

    assert [it.finding.value for it in with_lanes.found] == ["bulk"]
    assert [it.finding.message for it in without.found] == [
        "while 'critical' has work, 'bulk' never run"
    ]
    assert with_lanes.unchecked == without.unchecked == []


@pytest.mark.parametrize(("processes", "found"), [(2, 1), (3, 0)])
def test_reserves_that_leave_no_process_are_found(project, processes, found):
    lanes = "{'a': {'weight': 5, 'reserve': 1}, 'b': {'reserve': 1}, 'c': {'reserve': 9}}"
    examined = project(
        f"app.conf.idem = {{'lanes': {lanes}}}\napp.conf.worker_concurrency = {processes}\n"
    )

    # c is the last: there is nothing below it to reserve against
    assert len(examined.report("IDEM034").found) == found
