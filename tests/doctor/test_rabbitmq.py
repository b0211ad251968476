"""IDEM012: RabbitMQ's consumer timeout, asked from the broker."""

from __future__ import annotations

import doctest
import shutil
import subprocess
from urllib.parse import urlsplit

import pytest

from celery_idem.doctor import rabbitmq as module
from celery_idem.doctor.delays import longest_delays
from celery_idem.doctor.project import Project
from tests.support.rabbitmq import RabbitBroker
from tests.support.services import RABBITMQ_URL

TASKS = """
app.conf.idem = {"store": "memory"}

@app.task(base=IdempotentTask, time_limit=1800)
def too_long(): ...

@app.task(acks_late=True, time_limit=1799)
def short_enough(): ...

@app.task(time_limit=9999)
def acked_early(): ...

@app.task(base=IdempotentTask, bind=True, time_limit=60)
def comes_back_late(self):
    self.retry(countdown=7200)
"""


def may_ask() -> bool:
    """Whether rabbitmqctl works here, and the broker of the tests is on this machine."""
    binary = shutil.which("rabbitmqctl")
    if binary is None or urlsplit(RABBITMQ_URL).hostname not in ("127.0.0.1", "localhost"):
        return False
    return subprocess.run([binary, "-q", "status"], capture_output=True).returncode == 0


def test_answers_are_read_as_they_come():
    failed, tried = doctest.testmod(module)

    assert tried >= 4
    assert failed == 0


@pytest.mark.rabbitmq
def test_runs_and_delays_longer_than_the_brokers_timeout_are_found(project, rabbitmq: RabbitBroker):
    """RabbitMQ closes the channel of a slow consumer. The broker of the tests has its default
    of half an hour."""
    examined = project(TASKS, broker=rabbitmq.url)

    report = examined.report("IDEM012", servers=True)

    found = {it.finding.task.rpartition(".")[2]: it.finding for it in report.found}
    assert found.keys() == {"too_long", "comes_back_late"}
    assert "time limit 1800 s >= consumer_timeout 1800 s (" in found["too_long"].arithmetic
    assert found["too_long"].remedy.startswith("consumer_timeout = 3600000 ")
    place = found["comes_back_late"].place
    assert place is not None
    assert place.line == examined.line_of("countdown=7200")


def test_a_backoff_that_ends_long_before_its_most_is_no_long_delay(project):
    """1, 2, 4, 8 and 16 s, whatever ``retry_backoff_max`` allows."""
    examined = project(
        """
        @app.task(base=IdempotentTask, autoretry_for=(OSError,), retry_backoff=True,
                  retry_backoff_max=3600, max_retries=5, time_limit=60)
        def soon_over(): ...
        """
    )

    longest = [it.seconds for it in longest_delays(Project(examined.app), 0)]

    assert longest == [16]


@pytest.mark.rabbitmq
def test_it_is_said_who_told_the_timeout(project, rabbitmq: RabbitBroker, monkeypatch):
    examined = project(TASKS, broker=rabbitmq.url)

    allowed = may_ask()

    asked = Project(examined.app).servers.rabbitmq
    monkeypatch.setenv("PATH", "/nonexistent")
    assumed = Project(examined.app).servers.rabbitmq

    assert asked.version == assumed.version
    assert asked.timeout_s == assumed.timeout_s == 1800
    assert (asked.source == "rabbitmqctl") is allowed
    assert assumed.source.startswith(f"assumed: the default of RabbitMQ {assumed.version}")
    assert "rabbitmqctl eval" in assumed.source


@pytest.mark.rabbitmq
def test_a_management_api_that_does_not_answer_is_said(
    project, rabbitmq: RabbitBroker, monkeypatch
):
    monkeypatch.setattr(module, "QUEUE_TIMEOUTS_SINCE", module.Version("3.0"))
    examined = project(TASKS, broker=rabbitmq.url)

    report = examined.report("IDEM012", servers=True, rabbitmq_api="http://user:pw@127.0.0.1:1")

    (unchecked,) = report.unchecked
    assert unchecked.reason.startswith("the management API at 127.0.0.1:1 does not answer")
    assert "pw" not in unchecked.reason


def test_a_broker_that_does_not_answer_is_said(project):
    report = project(TASKS, broker="amqp://127.0.0.1:1//").report("IDEM012", servers=True)

    assert "does not answer" in report.unchecked[0].reason


@pytest.mark.parametrize(
    ("version", "seconds"), [("4.1.0", 1800), ("3.8.17", 1800), ("3.8.15", 900), ("3.8.14", None)]
)
def test_the_default_follows_the_version(version, seconds):
    assert module._default_s(version) == seconds


def test_a_queues_own_timeout_counts_more_than_the_brokers():
    facts = module.RabbitFacts("4.0", 1800.0, "rabbitmqctl", {"long": 86400.0})

    assert (facts.of_queue("long"), facts.of_queue("celery")) == (86400.0, 1800.0)


@pytest.mark.parametrize(("option", "found"), [("{}", 1), ("{'confirm_publish': True}", 0)])
def test_publishes_that_are_not_confirmed_are_found(project, option, found):
    """Publish "succeeds" but the broker drops it."""
    text = f"app.conf.broker_transport_options = {option}\n{TASKS}"

    assert len(project(text, broker="amqp://localhost:1//").report("IDEM044").found) == found
    assert project(text).found("IDEM044") == []
