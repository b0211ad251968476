"""IDEM010 to IDEM023: visibility timeouts, leases, time limits, acks."""

from __future__ import annotations

import textwrap

import pytest

UNKEPT = """
app.conf.idem = {"visibility_keeper": False}
"""


def test_a_visibility_timeout_shorter_than_a_run_is_found_without_the_keeper(project):
    """A task longer than the visibility timeout runs several times at once."""
    tasks = """
        app.conf.worker_prefetch_multiplier = 1
        app.conf.broker_transport_options = {"visibility_timeout": 100}

        @app.task(base=IdempotentTask, time_limit=100)
        def as_long(): ...

        @app.task(acks_late=True, time_limit=99)
        def shorter(): ...

        @app.task(acks_late=True, time_limit=500)
        def longer(): ...

        @app.task(acks_late=False, time_limit=500)
        def acked_early(): ...

        @app.task(acks_late=True)
        def nobody_knows(): ...
        """

    unkept = project("app.conf.idem = {'visibility_keeper': False}\n" + _plain(tasks))
    kept = project(tasks)

    assert unkept.found("IDEM010") == [("IDEM010", "as_long"), ("IDEM010", "longer")]
    assert kept.found("IDEM010") == []


def test_a_prefetched_message_waits_for_all_runs_before_it_s_v5(project):
    """S-V5: in-flight, prefetched and ETA messages alike."""
    examined = project(
        """
        app.conf.worker_prefetch_multiplier = 4

        @app.task(acks_late=True, time_limit=900)
        def exactly(): ...

        @app.task(acks_late=True, time_limit=901)
        def too_long(): ...
        """
    )

    (found,) = examined.report("IDEM010").found

    assert found.finding.task.endswith(".too_long")
    assert "4 × 901 s = 3604 s > visibility timeout 3600 s" in found.finding.arithmetic


def test_sqs_has_a_visibility_timeout_and_no_keeper(project):
    tasks = """
        app.conf.idem = {"store": "memory"}
        app.conf.worker_prefetch_multiplier = 1

        @app.task(base=IdempotentTask, time_limit=1800)
        def long(): ...
        """

    assert project(tasks, broker="sqs://").found("IDEM010") == [("IDEM010", "long")]


@pytest.mark.parametrize("broker", ["amqp://localhost:1//", "memory://"])
def test_brokers_without_a_visibility_timeout_have_nothing_to_find(project, broker):
    tasks = "@app.task(acks_late=True, time_limit=100_000)\ndef long(): ...\n"

    assert project(tasks, broker=broker).found("IDEM010", "IDEM011") == []


def test_the_streams_transport_has_no_visibility_timeout(project):
    tasks = "@app.task(acks_late=True, time_limit=100_000)\ndef long(): ...\n"

    assert project(tasks, broker="redis-streams://localhost:1/0").found("IDEM010") == []


DELAYS = """
    app.conf.broker_transport_options = {"visibility_timeout": 600}

    @app.task(bind=True, autoretry_for=(OSError,), default_retry_delay=601)
    def by_option(self): ...

    @app.task(bind=True, autoretry_for=(OSError,), retry_backoff=True, max_retries=11,
              retry_backoff_max=3600)  # 1, 2, 4, … 1024 s
    def by_backoff(self): ...

    @app.task(bind=True, autoretry_for=(OSError,), retry_backoff=True, max_retries=10,
              retry_backoff_max=3600)  # 1, 2, 4, … 512 s
    def by_a_backoff_that_ends_before(self): ...

    @app.task(bind=True, autoretry_for=(OSError,), max_retries=100, default_retry_delay=10,
              retry_kwargs={"max_retries": 1, "countdown": 602})
    def by_keywords(self): ...

    @app.task(bind=True, autoretry_for=(OSError,), retry_backoff=True, default_retry_delay=603)
    def by_hand_beside_a_backoff(self):
        self.retry()

    @app.task(bind=True)
    def by_body(self):
        raise self.retry(countdown=10 * 61)

    @app.task(bind=True, default_retry_delay=10_000)
    def never_retries(self): ...

    @app.task(bind=True, default_retry_delay=10_000, max_retries=0, autoretry_for=(OSError,))
    def has_no_retries(self): ...

    @app.task(bind=True, autoretry_for=(OSError,), default_retry_delay=600)
    def just_short_enough(self): ...

    @app.task
    def caller(seconds):
        by_body.apply_async(countdown=3600)
        by_body.apply_async(countdown=600)
        by_body.apply_async(countdown=seconds)
    """


def test_delays_longer_than_the_visibility_timeout_are_found_without_the_keeper(project):
    """An ETA longer than the visibility timeout multiplies the task."""
    examined = project(_plain(DELAYS))

    report = examined.report("IDEM011")

    named = sorted(it.finding.task.rpartition(".")[2] for it in report.found)
    assert named == [
        "", "by_backoff", "by_body", "by_hand_beside_a_backoff", "by_keywords", "by_option",
    ]  # fmt: skip
    call = next(it.finding for it in report.found if not it.finding.task)
    assert call.place is not None
    assert call.place.line == examined.line_of("countdown=3600")
    # 3600 s at a timeout of 600 s: the first delivery and six more
    assert "it is delivered 7 times" in call.arithmetic


def test_the_longest_delay_of_a_backoff_is_the_one_before_its_last_retry(project):
    """1, 2 and 4 s: not the 600 s that ``retry_backoff_max`` would allow to many more of them."""
    examined = project(
        """
        app.conf.broker_transport_options = {"visibility_timeout": 500}

        @app.task(bind=True, autoretry_for=(OSError,), retry_backoff=True, max_retries=3)
        def thrice(self): ...

        @app.task(bind=True, autoretry_for=(OSError,), retry_backoff=True, max_retries=None)
        def for_ever(self): ...
        """
    )

    (found,) = examined.report("IDEM011").found

    assert found.finding.task.endswith(".for_ever")
    assert "600 s > 500 s" in found.finding.arithmetic


def test_with_the_keeper_no_delay_is_too_long(project):
    tasks = _plain(DELAYS) + "\n@app.task(base=IdempotentTask)\ndef one(): ...\n"

    assert project(tasks).found("IDEM011") == []


def test_a_lease_that_ends_before_the_run_may_is_found(project):
    examined = project(
        """
        app.conf.idem = {"max_lease_s": 50}

        @app.task(base=IdempotentTask, time_limit=51)
        def cut_short(): ...

        @app.task(base=IdempotentTask, time_limit=50)
        def fits(): ...

        @app.task(base=IdempotentTask, time_limit=300, max_lease_s=300)
        def has_its_own(): ...

        @app.task(base=IdempotentTask)
        def no_limit(): ...
        """
    )

    assert examined.found("IDEM013") == [("IDEM013", "cut_short")]


def test_a_task_without_any_limit_is_found(project):
    tasks = """
        @app.task(base=IdempotentTask)
        def endless(): ...

        @app.task(base=IdempotentTask, time_limit=60)
        def limited(): ...

        @app.task(base=IdempotentTask, max_lease_s=60)
        def let_go(): ...

        @app.task
        def plain(): ...
        """

    assert project(tasks).found("IDEM014") == [("IDEM014", "endless")]
    assert project("app.conf.task_time_limit = 60\n" + _plain(tasks)).found("IDEM014") == []
    limited = "app.conf.idem = {'max_lease_s': 60}\n"
    assert project(limited + _plain(tasks)).found("IDEM014") == []


def test_late_acks_without_reject_on_worker_lost_are_found(project):
    """Late ack alone does not survive a killed pool child."""
    tasks = """
        @app.task(acks_late=True)
        def half(): ...

        @app.task(acks_late=True, reject_on_worker_lost=True)
        def whole(): ...

        @app.task
        def early(): ...

        @app.task(base=IdempotentTask)
        def idempotent(): ...
        """

    assert project(tasks).found("IDEM021") == [("IDEM021", "half")]
    whole = "app.conf.task_reject_on_worker_lost = True\n"
    assert project(whole + _plain(tasks)).found("IDEM021") == []


FAILING = """
    @app.task(acks_late=True, acks_on_failure_or_timeout=False, reject_on_worker_lost=True)
    def deleted(): ...

    @app.task(acks_late=True, reject_on_worker_lost=True)
    def acked(): ...

    @app.task(acks_on_failure_or_timeout=False)
    def early(): ...

    @app.task(base=IdempotentTask, acks_on_failure_or_timeout=False)
    def has_letters(): ...
    """


def test_messages_of_failed_tasks_that_redis_would_delete_are_found(project):
    """Reject without requeue on Redis is a delete."""
    assert project(FAILING).found("IDEM022") == [("IDEM022", "deleted")]


def test_letters_of_all_tasks_catch_them(project):
    letters = "app.conf.idem = {'dead_letters': {'all_tasks': True}}\n"

    assert project(letters + _plain(FAILING)).found("IDEM022") == []


def test_a_dead_letter_exchange_catches_them_on_rabbitmq(project):
    queue = """
    from kombu import Queue
    app.conf.idem = {"store": "memory"}
    app.conf.task_queues = [Queue("celery", queue_arguments={"x-dead-letter-exchange": "dlx"})]
    """
    tasks = "app.conf.idem = {'store': 'memory'}\n" + _plain(FAILING)
    broker = "amqp://localhost:1//"

    assert project(tasks, broker=broker).found("IDEM022") == [("IDEM022", "deleted")]
    assert project(_plain(queue) + _plain(FAILING), broker=broker).found("IDEM022") == []


@pytest.mark.celery_min(5, 7)  # before, there is one setting for both
def test_a_timeout_that_is_acked_although_failures_are_not_is_found(project):
    """Hard time limit: late-ack task acked and lost."""
    examined = project(
        """
        @app.task(acks_late=True, time_limit=9, acks_on_failure=False, acks_on_timeout=True)
        def killed_and_acked(): ...

        @app.task(acks_late=True, time_limit=9, acks_on_failure=False, acks_on_timeout=False)
        def comes_back(): ...

        @app.task(acks_late=True, acks_on_failure=False, acks_on_timeout=True)
        def is_never_killed(): ...

        @app.task(acks_late=True, time_limit=9)
        def celerys_default(): ...
        """
    )

    assert examined.found("IDEM023") == [("IDEM023", "killed_and_acked")]


def _plain(text: str) -> str:
    """The text without the indent that it has in a test."""
    return textwrap.dedent(text)
