"""IDEM001 to IDEM003: settings that can't be read, retention, tasks that break their promise."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from celery_idem.cli import check as cli
from celery_idem.core.errors import ConfigError
from celery_idem.doctor import told


def test_an_unknown_setting_is_found_with_the_nearest_right_one(project):
    examined = project("app.conf.idem = {'leese_s': 10}")

    (found,) = examined.report("IDEM001").found

    assert "did you mean 'lease_s'?" in found.finding.message


def test_ill_lanes_and_dead_letters_are_found(project):
    examined = project(
        "app.conf.idem = {'lanes': {'low': 0}, 'dead_letters': {'stoer': 'redis://localhost'}}"
    )

    messages = [it.finding.message for it in examined.report("IDEM001").found]

    assert len(messages) == 2
    assert "weight must be above 0" in messages[0]
    assert "did you mean 'store'?" in messages[1]


def test_a_task_without_a_store_is_found_and_an_app_without_a_task_is_not(project):
    task = "@app.task(base=IdempotentTask)\ndef t(): ...\n"

    with_task = project(task, broker="amqp://localhost:1//")
    without = project("", broker="amqp://localhost:1//")

    assert with_task.found("IDEM001") == [("IDEM001", "idem")]
    assert without.found("IDEM001") == []


def test_a_store_that_is_named_is_opened_even_where_no_task_uses_it_yet(project):
    for idem in ({"store": "mongo"}, {"dead_letters": {"store": "nowhere"}}):
        (found,) = project(f"app.conf.idem = {idem}\n").report("IDEM001").found

        assert "'mongo'" in found.finding.message or "'nowhere'" in found.finding.message


TASK = "@app.task(base=IdempotentTask, time_limit=60)\ndef one(): ...\n"


@pytest.mark.parametrize(
    "store",
    [
        "redis-streams://:s3cret@h:6379/0",
        "redis-streams://:s3@cret@h:6379/0",
        "postgresql://u:s3:cret@h/db",
        "redis-streams://h:6379/0?password=s3cret",
        "redis://:s3/cret@h:6379/0",
        "redis://:s3[cret@h:6379/0",
        "redis://:s3\N{ACCOUNT OF}cret@h:6379/0",
        "sentinel://:s3[cret@h:6379/0",
        "sentinel://:s3cret@a:26379;sentinel://:s3cret@b:26379",
        ["redis://:s3cret@a:6379/0", "redis://:s3cret@b:6379/0"],
        {"url": "redis://a", "password": "s3cret"},
    ],
)
@pytest.mark.parametrize("where", ["{{'store': {!r}}}", "{{'dead_letters': {{'store': {!r}}}}}"])
def test_a_store_that_is_wrong_is_named_without_its_password(project, store, where):
    examined = project(f"app.conf.idem = {where.format(store)}\n{TASK}")

    report = examined.report("IDEM001")

    assert report.found
    forms = [told.as_json(report, "error"), *told.as_github(report)]
    for shape in ("plain", "table"):
        with CliRunner().isolation() as (out, *_):
            cli._FORMS[shape](report, "error")
            forms.append(out.getvalue().decode())
    assert [it for it in forms if "s3" in it or "cret" in it.replace("secret", "")] == []


@pytest.mark.parametrize(
    "broker", ["redis://:s3/cret@h:6379/0", "amqp://u:s3/cret@h//", "redis://:s3[cret@h"]
)
def test_a_brokers_url_that_can_not_be_read_is_told_without_its_password(project, broker):
    report = project(f"app.conf.idem = {{'store': 'memory'}}\n{TASK}", broker=broker).report()

    text = told.as_json(report, "error")

    assert "%2F" in text
    assert "s3" not in text
    assert "cret" not in text


def test_retention_below_twice_the_window_is_found_s_i3(project):
    """S-I3: the key outlives the retry window, at least twofold."""
    examined = project(
        """
        @app.task(base=IdempotentTask, retention_s=10079, max_retries=8)
        def one_second_short(): ...

        @app.task(base=IdempotentTask, retention_s=10080, max_retries=8)
        def just_long_enough(): ...

        @app.task(base=IdempotentTask, max_retries=8)
        def computed(): ...

        @app.task(base=IdempotentTask, max_retries=None, retention_s=60)
        def endless(): ...
        """
    )

    assert examined.found("IDEM002") == [("IDEM002", "endless"), ("IDEM002", "one_second_short")]


def test_a_short_retention_of_the_app_is_found_for_every_task_that_it_is_too_short_for(project):
    examined = project(
        """
        app.conf.idem = {"retention_s": 8000}

        @app.task(base=IdempotentTask, max_retries=2)
        def quick(): ...

        @app.task(base=IdempotentTask, max_retries=8)
        def slow(): ...
        """
    )

    assert examined.found("IDEM002") == [("IDEM002", "slow")]


def test_a_countdown_in_the_body_counts_where_it_is_longer_than_the_tasks_delay(project):
    examined = project(
        """
        DAY = 24 * 3600

        @app.task(base=IdempotentTask, bind=True, max_retries=30)
        def monthly(self):
            self.retry(countdown=60 * 60 * 24)

        @app.task(base=IdempotentTask, bind=True, max_retries=30)
        def soon(self):
            self.retry(countdown=10)

        @app.task(base=IdempotentTask, bind=True, max_retries=30)
        def unknown(self, seconds):
            self.retry(countdown=seconds)
        """
    )

    (found,) = examined.report("IDEM002").found

    assert found.finding.task.endswith(".monthly")
    # 30 retries of a day and one redelivery of an hour, twice
    assert found.finding.remedy == f"retention_s={2 * (30 * 86400 + 3600)}"


def test_a_countdown_in_the_body_counts_beside_a_backoff_that_may_become_as_long(project):
    """8 retries after 600 s each; the backoff would have made 255 s of them."""
    examined = project(
        """
        @app.task(base=IdempotentTask, bind=True, autoretry_for=(OSError,), retry_backoff=True,
                  max_retries=8, time_limit=60, retention_s=17879)
        def one_second_short(self):
            self.retry(countdown=600)

        @app.task(base=IdempotentTask, bind=True, autoretry_for=(OSError,), retry_backoff=True,
                  max_retries=8, time_limit=60, retention_s=17880)
        def just_long_enough(self):
            self.retry(countdown=600)
        """
    )

    (found,) = examined.report("IDEM002").found

    # 2 × (8 × 600 s + 9 runs of 60 s + one redelivery of 3600 s)
    assert found.finding.task.endswith(".one_second_short")
    assert found.finding.remedy == "retention_s=17880"


@pytest.mark.parametrize(
    ("broker", "options", "least_s"),
    [
        # twice 3 × 180 s, 4 runs of 60 s and one redelivery
        ("redis://localhost:1/0", {}, 2 * (540 + 240 + 3600)),
        ("redis://localhost:1/0", {"visibility_timeout": 600}, 2 * (540 + 240 + 600)),
        ("sqs://", {}, 2 * (540 + 240 + 1800)),
        ("amqp://localhost:1//", {}, 2 * (540 + 240 + 3600)),
        # left over from another broker: these have no such timeout
        ("amqp://localhost:1//", {"visibility_timeout": 9000}, 2 * (540 + 240 + 3600)),
        ("redis-streams://localhost:1/0", {"visibility_timeout": 9000}, 2 * (540 + 240 + 3600)),
    ],
)
def test_a_worker_refuses_the_retention_that_is_found_and_no_other(
    project, broker, options, least_s
):
    examined = project(
        f"""
        app.conf.idem = {{"store": "memory"}}
        app.conf.broker_transport_options = {options!r}

        @app.task(base=IdempotentTask, time_limit=60, retention_s={least_s - 1})
        def short(): ...

        @app.task(base=IdempotentTask, time_limit=60, retention_s={least_s})
        def enough(): ...
        """,
        broker=broker,
    )
    tasks = sys.modules[examined.path.stem]

    assert examined.found("IDEM002") == [("IDEM002", "short")]
    assert tasks.enough._terms.retention_ms == least_s * 1000
    with pytest.raises(ConfigError, match=f"retention_s >= {least_s}"):
        tasks.short._terms  # noqa: B018


def test_tasks_that_break_the_promise_are_all_found_and_not_the_first_alone(project):
    examined = project(
        """
        import uuid
        app.conf.idem = {"lanes": {"critical": 10, "low": 1}}

        @app.task(base=IdempotentTask, acks_late=False)
        def early(): ...

        @app.task(base=IdempotentTask, reject_on_worker_lost=False)
        def lost(): ...

        @app.task(base=IdempotentTask, idem_key="{order}")
        def misnamed(order_id): ...

        @app.task(base=IdempotentTask, idem_key=lambda x: str(uuid.uuid4()))
        def unstable(x): ...

        @app.task(base=IdempotentTask, lane="criticl")
        def misrouted(): ...

        @shared_task(base=IdempotentTask, on_duplicate="retrun")
        def shared(): ...

        @app.task(idem_key="{order_id}")
        def forgotten(order_id): ...

        @app.task(base=IdempotentTask, idem_key="{order_id}", lane="low")
        def good(order_id): ...

        @app.task
        def plain(): ...
        """
    )

    names = ["early", "forgotten", "lost", "misnamed", "misrouted", "shared", "unstable"]
    report = examined.report("IDEM003")
    assert sorted(it.finding.task.rpartition(".")[2] for it in report.found) == names
    assert all(it.finding.place is not None for it in report.found)
    assert [it for it in report.found if not it.finding.remedy] == []


def test_an_app_that_is_right_is_finalized_as_celery_does(project):
    """Handlers of ``on_after_finalize`` (periodic tasks) are called: Django's checks run in every
    process of a site."""
    examined = project(
        """
        called = []

        @app.on_after_finalize.connect
        def periodic(sender, **_):
            called.append(sender)

        @app.task(base=IdempotentTask)
        def right(): ...
        """
    )

    examined.report("IDEM003")

    assert sys.modules[examined.path.stem].called == [examined.app]
