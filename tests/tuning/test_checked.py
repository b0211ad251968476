"""What ``idem tune`` proposes passes ``idem check``, and lets the worker start (S-V7)."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from celery import Celery
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from celery_idem import IdempotentTask
from celery_idem.binding import binding_of
from celery_idem.core.histogram import bucket_of
from celery_idem.doctor.checks import CHECKS
from celery_idem.doctor.project import Project
from celery_idem.doctor.runner import chosen, run
from celery_idem.stores.memory import MemoryStore
from celery_idem.tuning.block import block
from celery_idem.tuning.facts import Advice
from celery_idem.tuning.gather import gather
from celery_idem.tuning.propose import advise
from celery_idem.worker import check_tasks

LANES = {"critical": 10, "normal": 5, "low": 1}
KEPT = {"visibility_keeper": True}
UNKEPT = {"visibility_keeper": False}


def work(self: Any) -> None: ...


def asks_again(self: Any) -> None:
    raise self.retry(countdown=10000)


def answers(self: Any) -> Any:
    return self.request


@dataclass(frozen=True)
class Job:
    """A task, and its runs."""

    ran_s: float = 0.0
    runs: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    body: Callable[..., Any] = work
    idempotent: bool = True
    queue: str = "celery"


@dataclass(frozen=True)
class Shop:
    """An app as its settings and tasks make it."""

    jobs: dict[str, Job]
    idem: dict[str, Any] = field(default_factory=dict)
    conf: dict[str, Any] = field(default_factory=dict)
    broker: str = "redis://localhost/0"
    patterns: tuple[str, ...] = ()
    store: MemoryStore = field(default_factory=MemoryStore)

    @contextmanager
    def opened(self, paste: str = "") -> Iterator[Celery]:
        """The app with this pasted below its settings."""
        # a project's settings are read once, whatever has been made of them before
        prefix = {"prefix": uuid.uuid4().hex, "store": "memory"}
        app = Celery("shop", broker=self.broker, backend="cache+memory://", fixups=[])
        app.conf.update(self.conf)
        app.conf.idem = {**prefix, **self.idem}
        exec(paste, {"app": app})
        for name, job in self.jobs.items():
            base = {"base": IdempotentTask} if job.idempotent else {}
            app.task(job.body, shared=False, bind=True, name=name, **base, **job.options)
        binding_of(app).use(self.store)
        try:
            yield app
        finally:
            app.close()

    def measured(self) -> Shop:
        for name, job in self.jobs.items():
            if job.runs:
                self.store.carry({(name, job.queue, bucket_of(job.ran_s)): job.runs})
        return self


def findings(app: Celery) -> set[tuple[str, str, str]]:
    report = run(Project(app), chosen(CHECKS, servers=False))
    assert not report.unchecked
    return {(it.check.id, it.finding.task, it.finding.setting) for it in report.found}


def tuned(shop: Shop) -> tuple[Advice, str]:
    with shop.measured().opened() as app:
        advice = advise(gather(app, 7, shop.patterns))
    lines = block(
        advice.proposals, advice.facts.lanes, annotations_merge=advice.facts.annotations_merge
    )
    return advice, lines


def assert_it_passes(shop: Shop) -> None:
    with shop.opened() as app:
        before = findings(app)

    _, lines = tuned(shop)

    with shop.opened(lines) as app:
        assert findings(app) <= before, lines
        check_tasks(app)
        for task in (app.tasks[name] for name in shop.jobs):
            # Celery sends no task whose soft limit is the longer one
            assert (task.soft_time_limit or 0) <= (task.time_limit or math.inf)


def job(ran_s: float, runs: int = 400, **given: Any) -> Job:
    known = {name: given.pop(name) for name in ("body", "idempotent", "queue") if name in given}
    return Job(ran_s, runs, given, **known)


def never(**given: Any) -> Job:
    return job(0.0, 0, **given)


SHOPS = {
    "a retention of the app's, and long runs": Shop(
        {"s.pay": job(1200.0)}, idem={"retention_s": 86400, **KEPT}
    ),
    "a retention of the task's own": Shop(
        {"s.pay": job(1.0, max_retries=0, retention_s=7200), "s.mail": job(1.0)}
    ),
    "a retention of a task's own that is not asked for": Shop(
        {"s.pay": job(1200.0), "s.mail": never(max_retries=0, retention_s=7300)},
        patterns=("s.pay",),
    ),
    "a retention that is computed without the body's countdown": Shop(
        {"s.pay": job(600.0, body=asks_again)}
    ),
    "automatic retries that only long runs make the longer window": Shop(
        {
            "s.pay": job(
                1200.0,
                retention_s=86400,
                max_retries=3,
                autoretry_for=(OSError,),
                retry_kwargs={"max_retries": 30, "countdown": 1},
            )
        }
    ),
    "results that expire after a day": Shop({"s.pay": job(3000.0, body=answers)}),
    "a max_lease_s of the app's": Shop({"s.pay": job(1.0)}, idem={"max_lease_s": 20}),
    "a max_lease_s that runs come near": Shop({"s.pay": job(19.0)}, idem={"max_lease_s": 20}),
    "a max_lease_s of the task's own": Shop({"s.pay": job(1.0, max_lease_s=20)}),
    "a max_lease_s of its own that runs come near": Shop({"s.pay": job(19.0, max_lease_s=20)}),
    "a limit of a task that never ran": Shop(
        {"s.pay": job(1.0), "s.monthly": never(time_limit=1800)},
        idem=UNKEPT,
        conf={"broker_transport_options": {"visibility_timeout": 7200}},
    ),
    "a limit of a task that is not asked for": Shop(
        {"s.pay": job(1.0), "t.monthly": job(1000.0, time_limit=1800)},
        idem=UNKEPT,
        conf={"broker_transport_options": {"visibility_timeout": 7200}},
        patterns=("s.*",),
    ),
    "a countdown in a body": Shop(
        {"s.pay": job(1.0, body=asks_again)},
        idem=UNKEPT,
        conf={"broker_transport_options": {"visibility_timeout": 20000}},
    ),
    "many short runs beside a long limit": Shop(
        {"s.pay": job(0.002, 40000), "s.monthly": never(time_limit=800)}, idem=UNKEPT
    ),
    "long runs in lanes without the keeper": Shop(
        {"s.pay": job(400.0, lane="low", queue="low", max_retries=0)},
        idem={"lanes": LANES, **UNKEPT},
    ),
    "two processes and three lanes": Shop(
        {
            "s.pay": job(0.1, lane="critical", queue="critical"),
            "s.mail": job(0.1, lane="normal", queue="normal"),
            "s.report": job(600.0, lane="low", queue="low"),
        },
        idem={"lanes": LANES},
        conf={"worker_concurrency": 2},
    ),
    "a plain task that is lost when it is killed": Shop(
        {
            "s.pay": job(1.0),
            "s.old": job(
                1.0, idempotent=False, acks_late=True, acks_on_failure=False, acks_on_timeout=True
            ),
        },
    ),
    "a task whose name looks like a lane's place": Shop({"lanes.pay": job(1.0), "idem": job(1.0)}),
    "annotations of every task": Shop(
        {"s.pay": job(1200.0), "s.mail": job(1.0)},
        conf={"task_annotations": {"*": {"retention_s": 86400, "rate_limit": "9/s"}}},
    ),
    "lanes on SQS, which prefetches beside them": Shop(
        {"s.pay": job(400.0, idempotent=False, acks_late=True, lane="low", queue="low")}
        | {"s.mail": never(lane="critical")},
        idem={"lanes": LANES},
        conf={"worker_prefetch_multiplier": 100},
        broker="sqs://",
    ),
    "annotations that are a list": Shop(
        {"s.pay": job(1.0)}, conf={"task_annotations": [{"s.pay": {"rate_limit": "9/s"}}]}
    ),
}


@pytest.mark.parametrize("shop", SHOPS.values(), ids=SHOPS.keys())
def test_what_is_proposed_passes_the_check_and_the_worker_starts(shop):
    assert_it_passes(shop)


seconds = st.sampled_from([0.005, 0.3, 2.0, 19.0, 70.0, 400.0, 1200.0, 7200.0, 50000.0])
spans = st.none() | st.sampled_from([1.5, 20, 60, 900, 3600, 7200, 86400, 10**6])


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    options: dict[str, Any] = {
        "max_retries": draw(st.sampled_from([None, 0, 1, 3, 50])),
        "default_retry_delay": draw(st.sampled_from([0, 180, 7200])),
        "time_limit": draw(spans),
        "soft_time_limit": None,
    }
    if options["time_limit"] and draw(st.booleans()):
        options["soft_time_limit"] = options["time_limit"] * 0.5
    if draw(st.booleans()):
        options |= {"retry_backoff": draw(st.sampled_from([1, 60])), "retry_backoff_max": 5000}
    if draw(st.booleans()):
        own = {"max_retries": draw(st.sampled_from([0, 9])), "countdown": draw(spans) or 1}
        options |= {"autoretry_for": (OSError,), "retry_kwargs": own}
    idempotent = draw(st.sampled_from([True, True, False]))
    if idempotent:
        options |= {"retention_s": draw(spans), "max_lease_s": draw(spans)}
    else:
        options |= {
            name: draw(st.booleans())
            for name in ("acks_late", "acks_on_failure", "acks_on_timeout")
        }
    queue = draw(st.sampled_from(list(LANES)))
    body = draw(st.sampled_from([work, asks_again, answers]))
    runs = draw(st.sampled_from([0, 40, 400, 40000]))
    return Job(draw(seconds), runs, {**options, "lane": queue}, body, idempotent, queue)


@st.composite
def shops(draw: st.DrawFn) -> Shop:
    names = draw(
        st.lists(st.sampled_from(["s.a", "s.b", "t.c", "lanes.low"]), min_size=1, unique=True)
    )
    found = {name: draw(jobs()) for name in names}
    idem: dict[str, Any] = {
        "visibility_keeper": draw(st.booleans()),
        "retention_s": draw(spans),
        "max_lease_s": draw(spans),
        "lease_s": draw(st.sampled_from([0.5, 30.0, 600.0])),
    }
    if draw(st.booleans()):
        idem["lanes"] = {
            name: {"weight": weight, "reserve": draw(st.integers(0, 2)), "deadline": draw(spans)}
            for name, weight in LANES.items()
        }
    else:
        for each in found.values():
            del each.options["lane"]
    annotated = draw(st.dictionaries(st.sampled_from(["*", *names]), st.just({"priority": 3})))
    conf = {
        "worker_prefetch_multiplier": draw(st.sampled_from([0, 1, 4, 100])),
        "worker_concurrency": draw(st.sampled_from([None, 1, 2, 8])),
        "task_time_limit": draw(spans),
        "result_expires": draw(spans),
        "task_annotations": draw(st.none() | st.just(annotated)),
        "broker_transport_options": {},
    }
    if (timeout_s := draw(spans)) is not None:
        conf["broker_transport_options"] = {"visibility_timeout": timeout_s}
    broker = draw(st.sampled_from(["redis://localhost/0", "amqp://localhost//"]))
    return Shop(found, idem, conf, broker, draw(st.sampled_from([(), ("s.*",)])))


# to shrink what was found would take minutes
@settings(max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(shop=shops())
def test_so_it_does_with_any_settings_and_run_times(shop):
    assert_it_passes(shop)


def test_a_task_keeps_its_other_annotations():
    given = {"s.pay": {"rate_limit": "10/s"}, "s.mail": {"rate_limit": "1/s"}}
    shop = Shop({"s.pay": job(1.0)}, conf={"task_annotations": given})

    _, lines = tuned(shop)

    with shop.opened(lines) as app:
        pay = app.tasks["s.pay"]
        assert (pay.rate_limit, pay.time_limit, pay.soft_time_limit) == ("10/s", 35, 30)
        assert app.conf.task_annotations["s.mail"] == {"rate_limit": "1/s"}


def test_annotations_that_are_no_dict_are_left_alone_and_what_belongs_in_them_is_said():
    given = [{"s.pay": {"rate_limit": "10/s"}}]
    shop = Shop({"s.pay": job(1.0)}, conf={"task_annotations": given})

    _, lines = tuned(shop)

    assert "# s.pay: time_limit=35, soft_time_limit=30" in lines
    with shop.opened(lines) as app:
        assert app.conf.task_annotations == given


def test_a_limit_that_is_set_for_every_task_is_left_alone():
    """Celery 5.7 ``annotations.py: resolve_all`` lets ``*`` win over the task's own annotation."""
    given = {"*": {"time_limit": 15}}
    shop = Shop({"s.pay": job(14.0)}, conf={"task_annotations": given})

    advice, lines = tuned(shop)

    [limit] = [p for p in advice.proposals if p.setting == "time_limit"]
    assert (limit.now, limit.proposed) == (15.0, None)
    assert "task_annotations" not in lines


def test_sqs_gets_no_visibility_timeout_that_it_refuses():
    """Twelve hours are the most that it takes."""
    shop = Shop({"s.pay": job(7200.0)}, broker="sqs://")

    advice, _ = tuned(shop)

    [timeout] = [p for p in advice.proposals if p.setting == "visibility_timeout"]
    assert timeout.proposed == 43200


def test_a_limit_that_outlasts_rabbitmqs_patience_is_a_warning():
    """3 × 1200 s, as the edge of its bucket 1214 s: soft 4200 s, hard 4800 s, against 1800 s."""
    shop = Shop({"s.pay": job(1200.0)}, broker="amqp://localhost//")

    advice, _ = tuned(shop)

    [warning] = [it for it in advice.warnings if "consumer_timeout" in it]
    assert "consumer_timeout = 9600000" in warning
