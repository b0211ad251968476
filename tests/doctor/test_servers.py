"""Checks that ask Redis and workers (C04, C22): real servers, real workers."""

from __future__ import annotations

import socket

import pytest

from celery_idem.doctor.finding import Severity

TASK = """
@app.task(base=IdempotentTask, time_limit=60)
def job(): ...
"""
PLAIN = """
@app.task(acks_late=True)
def job(): ...
"""
EVICTING = ["--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru"]


@pytest.fixture
def nobody() -> str:
    """URL of a Redis that does not answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"redis://127.0.0.1:{free.getsockname()[1]}/0"


def test_a_redis_that_evicts_is_found_whatever_is_on_it_c22(project, make_redis):
    """C22: an eviction policy deletes the queue itself. The server of messages, records and dead
    letters is one finding, not three."""
    server = make_redis("evicting", extra=EVICTING)
    examined = project(TASK, broker=server.url())

    (found,) = examined.report("IDEM040", servers=True).found

    assert found.severity is Severity.ERROR
    assert "messages and records and dead letters" in found.finding.message
    assert "maxmemory 6291456 bytes, maxmemory-policy allkeys-lru" in found.finding.arithmetic


def test_what_the_check_warns_of_happens_c22(project, make_redis):
    """C22, the scenario: 300 waiting jobs on a Redis that is also a cache, which fills up."""
    server = make_redis("cache", durable=False, extra=EVICTING)
    examined = project(PLAIN, broker=server.url())
    for _ in range(300):
        examined.app.send_task("job")

    with server.client() as client:
        waiting = client.llen("celery")
        for n in range(0, 200_000, 1000):  # which keys go first is the server's choice
            client.mset({f"cache:{it}": "x" * 1000 for it in range(n, n + 1000)})
            if not client.exists("celery"):
                break
        left = client.llen("celery")

    assert (waiting, left) == (300, 0)
    assert [it.check.id for it in examined.report("IDEM040", servers=True).found] == ["IDEM040"]


def test_a_worker_warns_of_an_evicting_broker_and_store_at_its_start_c22(
    project, make_redis, start_worker
):
    server = make_redis("evicting", extra=EVICTING)
    examined = project(TASK, broker=server.url())

    worker = start_worker(examined.worker_app, env=examined.env)

    worker.wait_log(r"the Redis store: maxmemory-policy is allkeys-lru")
    worker.wait_log(r"the broker: maxmemory-policy is allkeys-lru")


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ([], None),
        (["--maxmemory", "50mb"], None),
        (["--maxmemory", "50mb", "--maxmemory-policy", "volatile-ttl"], Severity.ERROR),
        (["--maxmemory-policy", "volatile-lru"], Severity.WARNING),
    ],
    ids=["default", "bounded", "volatile", "no bound"],
)
def test_any_policy_but_noeviction_is_found_c22(project, make_redis, extra, expected):
    examined = project(TASK, broker=make_redis("policy", extra=extra).url())

    levels = [it.severity for it in examined.report("IDEM040", servers=True).found]

    assert levels == ([] if expected is None else [expected])


def test_a_store_on_another_server_is_looked_at_too(project, make_redis):
    broker, store = make_redis("broker"), make_redis("store", extra=EVICTING)
    setting = f"app.conf.idem = {{'store': {store.url()!r}}}\n"
    examined = project(setting + TASK, broker=broker.url())

    (found,) = examined.report("IDEM040", servers=True).found

    assert "records and dead letters" in found.finding.message
    assert str(store.port) in found.finding.message


def test_a_redis_without_persistence_is_found_with_what_it_keeps_c22(project, make_redis):
    forgetful, careful = make_redis("forgetful", durable=False), make_redis("careful")

    (found,) = project(TASK, broker=forgetful.url()).report("IDEM041", servers=True).found

    assert "after a crash nothing is there" in found.finding.message
    assert project(TASK, broker=careful.url()).found("IDEM041", servers=True) == []


def test_a_managed_server_that_refuses_config_is_looked_at_by_info_c22(project, make_redis):
    extra = ["--rename-command", "CONFIG", "", *EVICTING]
    examined = project(TASK, broker=make_redis("managed", durable=False, extra=extra).url())

    report = examined.report("IDEM040", "IDEM041", servers=True)

    assert [it.check.id for it in report.found] == ["IDEM040", "IDEM041"]
    # whether it takes snapshots, it does not say
    assert "the last snapshot is there" in report.found[1].finding.message


def test_a_password_is_not_shown(project, make_redis):
    server = make_redis("secret", durable=False, extra=["--requirepass", "hunter2"])
    url = server.url().replace("redis://", "redis://:hunter2@")

    (found,) = project(TASK, broker=url).report("IDEM041", servers=True).found

    assert "hunter2" not in repr(found)


@pytest.mark.parametrize("scheme", ["redis", "redis-streams"])
def test_a_server_that_does_not_answer_is_said_and_is_no_finding(project, nobody, scheme):
    examined = project(TASK, broker=nobody.replace("redis", scheme))

    report = examined.report("IDEM040", "IDEM041", "IDEM060", servers=True)

    assert report.found == []
    assert [it.check.id for it in report.unchecked] == ["IDEM040", "IDEM041", "IDEM060"]
    assert all("does not answer" in it.reason for it in report.unchecked)


def test_the_streams_transport_is_looked_at_as_well(project, make_redis):
    server = make_redis("evicting", extra=EVICTING)
    examined = project(TASK, broker=server.url().replace("redis", "redis-streams"))

    assert len(examined.report("IDEM040", servers=True).found) == 1


# -- workers


def test_another_app_on_the_database_with_a_shorter_timeout_is_found_c04(
    project, redis_url, start_worker
):
    """C04: two applications sharing a Redis database: the shortest timeout wins."""
    patient = project("app.conf.broker_transport_options = {'visibility_timeout': 3600}\n" + PLAIN)
    hasty = project(
        "app.conf.broker_transport_options = {'visibility_timeout': 3}\n"
        "@app.task\ndef another(): ...\n",
        broker=redis_url,
    )
    patient.app.conf.broker_url = redis_url
    worker = start_worker(hasty.worker_app, queues=["b"], env=hasty.env)

    (found,) = patient.report("IDEM042", servers=True).found

    assert found.severity is Severity.ERROR
    assert f"{worker.hostname} (queues b)" in found.finding.message
    assert "puts your messages back after 3 s" in found.finding.message
    assert "its visibility timeout 3 s, this app's 3600 s" in found.finding.arithmetic
    # its own app sees nobody but itself
    assert hasty.found("IDEM042", servers=True) == []


@pytest.mark.parametrize(("own", "found"), [(3600, []), (3, [Severity.WARNING])])
def test_with_the_keeper_others_take_nothing_but_may_lose_to_us_c04(
    project, redis_url, start_worker, own, found
):
    others = "app.conf.broker_transport_options = {'visibility_timeout': 60}\n"
    theirs = project(others + "@app.task(name='theirs')\ndef job(): ...\n", broker=redis_url)
    ours = f"app.conf.broker_transport_options = {{'visibility_timeout': {own}}}\n"
    kept = project(ours + TASK, broker=redis_url)
    start_worker(theirs.worker_app, queues=["b"], env=theirs.env)

    levels = [it.severity for it in kept.report("IDEM042", servers=True).found]

    assert levels == found


LANES = "app.conf.idem = {'lanes': {'critical': 10, 'normal': 5, 'low': 1}}\n"


def test_a_lane_without_workers_and_a_queue_that_is_no_lane_are_found(
    project, redis_url, start_worker
):
    examined = project(LANES + TASK, broker=redis_url)
    worker = start_worker(examined.worker_app, queues=["critical", "norml"], env=examined.env)

    report = examined.report("IDEM032", servers=True)

    messages = [it.finding.message for it in report.found]
    assert messages == [
        "no worker consumes the lane 'normal' (1 answered)",
        "no worker consumes the lane 'low' (1 answered)",
        f"the queue 'norml', which {worker.hostname} consumes, is no lane",
    ]


def test_workers_of_another_project_do_not_count(project, redis_url, start_worker):
    other = project("@app.task(name='others')\ndef job(): ...\n", broker=redis_url)
    examined = project(LANES + TASK, broker=redis_url)
    start_worker(other.worker_app, queues=["critical", "normal", "low"], env=other.env)

    (unchecked,) = examined.report("IDEM032", servers=True).unchecked

    assert "no worker of this project answered" in unchecked.reason


def test_clocks_that_differ_are_found_and_by_how_much(project, redis_url, start_worker, clock_skew):
    examined = project(TASK, broker=redis_url)
    clock_skew.set(-3600)
    slow = start_worker(examined.worker_app, env={**examined.env, **clock_skew.env})
    start_worker(examined.worker_app, env=examined.env)

    (found,) = examined.report("IDEM060", servers=True).found

    assert f"ahead of that of {slow.hostname}" in found.finding.message
    assert 3590 < float(found.finding.value) < 3610


def test_clocks_that_agree_are_no_finding(project, redis_url, start_worker):
    examined = project(TASK, broker=redis_url)
    start_worker(examined.worker_app, env=examined.env)

    report = examined.report("IDEM060", servers=True)

    assert (report.found, report.unchecked) == ([], [])
