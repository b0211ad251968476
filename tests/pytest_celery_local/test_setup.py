"""pytest-celery's ``celery_setup`` on local processes: runs, is killed, comes back."""

from __future__ import annotations

from pytest_celery.vendors.worker.tasks import add

from tests.pytest_celery_local.tasks import slow


def test_a_task_runs_and_the_log_tells(celery_setup):
    assert celery_setup.ready(ping=True, control=True, docker=True)

    assert add.s(2, 3).apply_async().get(timeout=60) == 5

    celery_setup.worker.assert_log_exists("succeeded in")
    assert celery_setup.worker.hostname() in celery_setup.app.control.inspect().ping()


def test_a_worker_that_is_killed_and_restarted_gets_the_job_again(celery_setup, effects):
    result = slow.s("work", 1.0).apply_async()
    effects.wait_count("work:start", 1)

    celery_setup.worker.kill()

    assert celery_setup.worker.container.status == "exited"
    celery_setup.worker.restart()
    assert result.get(timeout=60) == "work"
    assert effects.keys() == ["work:start", "work:start", "work:end"]
