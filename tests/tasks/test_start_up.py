"""A task that can't keep the promise is an error before the first message is taken (S-I2, S-I3)."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_idem import ConfigError, IdempotentTask
from celery_idem.options import check_attributes


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        pytest.param(
            "retention",
            r"retention 3600 s is shorter than twice the retry window of refused\.pay "
            r"\(2 × 2 h 20 min: 8 retries, 600 s each: 4800 s \+ redelivery "
            r"3600 s = 8400 s\); "
            r"set retention_s >= 16800, or lower max_retries",
            id="retention",  # S-I3: 2 × (8 × 600 + 3600)
        ),
        pytest.param("template", r"oder_id.*order_id", id="template"),
        pytest.param("unstable", r"refused\.pay: idem_key uses uuid\.uuid4", id="unstable"),
        pytest.param("early", r"acks_late=False breaks the promise", id="early"),
        pytest.param("base", r"refused\.mail: idem_key is an option of idem.*plain one", id="base"),
        pytest.param("conflict", r"on_conflict must be one of wait, skip, raise", id="conflict"),
        pytest.param("setting", r"unknown setting 'lease'; did you mean 'lease_s'", id="setting"),
    ],
)
def test_a_worker_refuses_to_start_and_says_why(
    redis_url: str, start_worker: Any, bad: str, says: str
) -> None:
    worker = start_worker(
        "tests.apps.refused:app", wait=False, env={"TEST_BROKER": redis_url, "TEST_BAD": bad}
    )

    assert worker.wait_exit() != 0
    worker.wait_log(says, deadline_s=1)
    assert "ready." not in worker.log_text()


def test_a_worker_refuses_to_start_though_django_swallowed_the_first_refusal(
    redis_url: str, start_worker: Any
) -> None:
    """Celery has Django check its models before the worker is built, in a signal whose errors it
    only logs; our own checks bind the tasks there, and an app binds its tasks once."""
    worker = start_worker(
        "tests.apps.refused:app",
        wait=False,
        env={
            "TEST_BROKER": redis_url,
            "TEST_BAD": "early",
            "DJANGO_SETTINGS_MODULE": "tests.django.settings",
        },
    )

    assert worker.wait_exit() != 0
    worker.wait_log(r"acks_late=False breaks the promise", deadline_s=1)
    assert "ready." not in worker.log_text()


def test_the_same_worker_starts_when_nothing_is_wrong(redis_url: str, start_worker: Any) -> None:
    """So the refusals above are for what they say."""
    start_worker("tests.apps.refused:app", env={"TEST_BROKER": redis_url, "TEST_BAD": "none"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"acks_late": False}, "acks_late=False breaks the promise"),
        ({"reject_on_worker_lost": False}, "reject_on_worker_lost=False breaks the promise"),
        ({"on_duplicate": "drop"}, "on_duplicate must be one of return, ignore, raise"),
        ({"on_conflict": None}, "on_conflict must be one of wait, skip, raise"),
        ({"lease_s": 0}, "lease_s must be at least 0.1"),
        ({"lease_s": "30"}, "lease_s must be a number"),
        ({"max_crashes": 0}, "max_crashes must be at least 1"),
        ({"max_crashes": 1.5}, "max_crashes must be a whole number"),
        ({"idem_key": 5}, "must be a template or a callable"),
        ({"idem_key": "{a.__class__}"}, "no leading underscore"),
        ({"idem_key": "{0}"}, "must begin with the name of an argument"),
        ({"idem_kye": "pay:{a}"}, "no task option 'idem_kye'; did you mean idem_key?"),
        ({"idem_kye": lambda a: f"pay:{a}"}, "no task option 'idem_kye'; did you mean idem_key?"),
        ({"idem_store": "x"}, "no task option 'idem_store'; it knows idem_key, lease_s, "),
        ({"retention": 60}, "no task option 'retention'; did you mean retention_s?"),
    ],
)
# modules of apps that other tests of this process load afresh
@pytest.mark.filterwarnings("ignore:Task name .* is already registered")
def test_a_bad_option_is_an_error_where_the_task_is_defined(
    options: dict[str, Any], says: str
) -> None:
    app = Celery("defined", broker="memory://", set_as_current=False)

    # shared=False: Celery would give the task to every app that this process makes later, too
    @app.task(base=IdempotentTask, name="bad.task", shared=False, **options)
    def task(a: int) -> None: ...

    with pytest.raises(ConfigError, match=says):
        app.finalize()


def test_attributes_and_methods_of_ones_own_are_left_alone() -> None:
    class Singleton:
        """A mixin of somebody else's."""

        raise_on_duplicate = True
        lanes = ("a", "b")

    class Ours(Singleton, IdempotentTask):
        name = "own.task"
        idem_key = "pay:{a}"
        tenant = "north"
        idempotent = True
        lock_expiry = 60

        def run(self, a: int) -> None: ...

        def fingerprints(self) -> int:
            return 1

        @property
        def retention(self) -> int:
            return 2

    check_attributes(Ours)
