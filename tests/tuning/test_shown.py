"""What ``idem tune`` shows: a page, a picture, lines that can be pasted (S-V7)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_idem import IdempotentTask
from celery_idem.binding import binding_of
from celery_idem.cli.idem import idem
from celery_idem.core.histogram import Histogram, bucket_of
from celery_idem.core.order import Lane
from celery_idem.stores.memory import MemoryStore
from celery_idem.tuning.block import block
from celery_idem.tuning.facts import LaneFacts, Proposal, TaskFacts
from celery_idem.tuning.picture import lines, svg

LANES = (
    LaneFacts("critical", Histogram(), Lane("critical", 10.0, "critical", 0, 2.0)),
    LaneFacts("low", Histogram(), Lane("low", 1.0, "bulk")),
)


def change(place: str, setting: str, proposed: Any) -> Proposal:
    return Proposal(place, setting, None, proposed, "why", "sure")


CHANGES = [
    change("idem", "lease_s", 10.0),
    change("lanes.critical", "reserve", 1),
    change("broker_transport_options", "visibility_timeout", 600.0),
    change("conf", "worker_prefetch_multiplier", 2),
    change("shop.pay", "time_limit", 40.0),
    change("shop.pay", "soft_time_limit", 35.0),
]


@pytest.fixture
def app() -> Any:
    app = Celery("shop", broker="redis://localhost/0", fixups=[])  # no Django here
    app.conf.idem = {"store": "memory", "lanes": {"critical": 10, "low": {"queue": "bulk"}}}

    @app.task(shared=False, base=IdempotentTask, name="shop.pay")
    def pay(order: int) -> None: ...

    @app.task(shared=False, base=IdempotentTask, name="shop.mail")
    def mail(order: int) -> None: ...

    @app.task(shared=False, name="shop.report")
    def report() -> None: ...

    store = MemoryStore()
    binding_of(app).use(store)
    store.carry({("shop.pay", "critical", bucket_of(0.25)): 990})
    store.carry({("shop.pay", "critical", bucket_of(2.5)): 10})
    store.carry({("shop.report", "bulk", bucket_of(20.0)): 40})
    yield app
    app.close()


def run(app: Any, *words: str) -> str:
    done = CliRunner().invoke(idem, ["tune", *words], obj=SimpleNamespace(app=app))
    assert done.exit_code == 0, done.output
    return done.output


def test_the_page_says_what_was_measured_what_is_proposed_and_why(app):
    text = run(app)

    assert "shop.pay     1,000  240 ms" in text
    assert "good: 1,000 runs" in text
    assert "fair: 40 runs" in text
    assert "idem: lease_s" in text
    assert "lanes.critical: reserve" in text
    assert "longer than 2 s; no weight helps" in text
    assert "not run in 7 days: shop.mail" in text
    assert "^ median   * 99 %   | lease 30 s" in text


def test_the_json_has_the_same_in_seconds(app):
    data = json.loads(run(app, "--json"))

    pay, report = data["tasks"]
    assert (pay["task"], pay["runs"]) == ("shop.pay", 1000)
    assert pay["p50_s"] == pytest.approx(0.25, rel=0.05)
    assert report["p99_at_most_s"] is None
    assert [lane["lane"] for lane in data["lanes"]] == ["critical", "low"]
    assert data["lanes"][1]["seconds"] == pytest.approx(800, rel=0.05)
    assert {"lease_s", "reserve", "charge"} <= {p["setting"] for p in data["proposals"]}


def test_only_some_tasks_may_be_asked_for(app):
    data = json.loads(run(app, "--json", "--task", "shop.r*"))

    assert [task["task"] for task in data["tasks"]] == ["shop.report"]


def test_without_any_run_it_says_what_to_do():
    app = Celery("shop", broker="redis://localhost/0", fixups=[])
    app.conf.idem = {"store": "memory", "prefix": "empty"}

    assert "let some run, and ask again" in run(app)
    app.close()


def test_the_block_is_python_that_makes_the_proposed_settings(app):
    app.conf.idem = {"lanes": {"old": 1}, "store": "memory"}
    app.conf.broker_transport_options = {"socket_timeout": 5}
    app.conf.task_annotations = {"shop.mail": {"rate_limit": "1/s"}}

    exec(block(CHANGES, LANES), {"app": app})

    assert app.conf.idem == {
        "store": "memory",
        "lease_s": 10,
        "lanes": {
            "critical": {"weight": 10, "deadline": 2, "reserve": 1},
            "low": {"weight": 1, "queue": "bulk"},
        },
    }
    assert app.conf.broker_transport_options == {"socket_timeout": 5, "visibility_timeout": 600}
    assert app.conf.worker_prefetch_multiplier == 2
    assert app.conf.task_annotations == {
        "shop.mail": {"rate_limit": "1/s"},
        "shop.pay": {"time_limit": 40, "soft_time_limit": 35},
    }


def test_for_django_the_block_makes_its_settings():
    names: dict[str, Any] = {"CELERY_IDEM": {"store": "django"}}

    exec(block(CHANGES, LANES, django=True), names)

    assert names["CELERY_IDEM"]["store"] == "django"
    assert names["CELERY_IDEM"]["lease_s"] == 10
    assert names["CELERY_BROKER_TRANSPORT_OPTIONS"] == {"visibility_timeout": 600}
    assert names["CELERY_WORKER_PREFETCH_MULTIPLIER"] == 2
    assert names["CELERY_TASK_ANNOTATIONS"]["shop.pay"] == {"time_limit": 40, "soft_time_limit": 35}


def test_what_is_pasted_reaches_the_task(app):
    exec(block([change("shop.pay", "time_limit", 40.0)], ()), {"app": app})
    app.finalize()
    task = app.tasks["shop.pay"]
    task.annotate()

    assert task.time_limit == 40


def test_nothing_that_fits_is_pasted(app):
    assert block([Proposal("idem", "lease_s", 5.0, 5.0, "why", "sure")], LANES) == ""
    assert run(app, "--block").startswith("app.conf.idem = {")


# --- the picture

TASKS = [
    TaskFacts("shop.pay", Histogram.of([0.25] * 990 + [2.5] * 10)),
    TaskFacts("shop.report", Histogram.of([20.0] * 40)),
    TaskFacts("shop.mail", Histogram()),
]


def test_the_picture_has_a_line_of_blocks_and_marks_for_each_task_that_ran():
    shown = list(lines(TASKS, lease_s=30.0))

    assert len(shown) == 2 * 2 + 2
    pay, marks, report = shown[0], shown[1], shown[2]
    assert pay.startswith("shop.pay     ")
    assert "█" in pay
    assert marks.index("^") == pay.index("█")  # the median is the highest
    assert report.index("█") > pay.index("█")
    assert marks.index("|") > report.index("█")  # the lease is longer than any run
    assert "100ms" in shown[-2]


def test_a_picture_of_nothing_is_nothing():
    assert list(lines([TASKS[2]], lease_s=30.0)) == []
    ElementTree.fromstring(svg([TASKS[2]], lease_s=30.0))


def test_the_svg_is_well_formed_and_says_the_figures(app, tmp_path):
    text = run(app, "--svg", str(tmp_path / "runs.svg"))

    root = ElementTree.fromstring((tmp_path / "runs.svg").read_text())
    said = " ".join(node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "shop.pay: 1,000 runs, median 240 ms" in said
    assert "lease 30 s" in said
    assert "Why" in text


def test_names_are_escaped_in_the_svg():
    ElementTree.fromstring(svg([TaskFacts("<a&b>", Histogram.of([1.0]))], 30.0))


def test_a_file_that_can_not_be_written_is_a_clear_error(app):
    words = ["tune", "--svg", "/no/such/folder/x.svg"]

    done = CliRunner().invoke(idem, words, obj=SimpleNamespace(app=app))

    assert done.exit_code == 1
    assert "/no/such/folder/x.svg" in done.output
