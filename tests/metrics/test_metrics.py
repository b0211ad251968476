"""What a real worker tells Prometheus, whatever process it happened in."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from celery_idem.core.errors import ConfigError
from celery_idem.metrics import names
from celery_idem.metrics.settings import MetricsSettings
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.support.workers import Worker
from tests.tasks.stage import Stage, open_stage

DEADLINE_S = 90
APP = "tests.apps.letters"
LANES = {"critical": 10, "celery": 1}

Numbers = dict[tuple[str, tuple[str, ...]], float]


def numbers(text: str) -> Numbers:
    """Name and label values (in the order of the labels' names) → value."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def port_of(worker: Worker) -> int:
    return int(worker.wait_log(r"metrics: http://127\.0\.0\.1:(\d+)/metrics", DEADLINE_S)[1])


def scrape(worker: Worker) -> Numbers:
    url = f"http://127.0.0.1:{port_of(worker)}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return numbers(answer.read().decode())


def wait_for(worker: Worker, wanted: Numbers) -> Numbers:
    """The scrape in which all of these numbers are so."""
    seen: list[Numbers] = [{}]

    def look() -> Numbers | None:
        seen[0] = scrape(worker)
        return seen[0] if wanted.items() <= seen[0].items() else None

    def missing() -> str:
        return f"{ {key: seen[0].get(key) for key in wanted} } to be {wanted}"

    return wait_until(look, DEADLINE_S, missing)


def stage_of(factory: Any, **settings: Any) -> Any:
    idem = {"metrics": {"port": 0}, "lanes": LANES, **settings}
    scheme = idem.pop("scheme", "redis")
    return open_stage(factory, APP, TEST_IDEM=json.dumps(idem), TEST_SCHEME=scheme)


@pytest.fixture(params=["prefork", "threads", "gevent", "eventlet"])
def worker_and_stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Worker, Stage]]:
    with stage_of(tmp_path_factory) as stage:
        yield stage.start_worker(pool=request.param, concurrency=2, queues=tuple(LANES)), stage


def test_claims_duplicates_conflicts_and_letters_are_counted(
    worker_and_stage: tuple[Worker, Stage],
) -> None:
    worker, stage = worker_and_stage
    tasks, gate = stage.tasks, stage.gate("held")
    tasks.good.apply_async(("one",), queue="critical").get(timeout=DEADLINE_S)
    tasks.good.delay("one").get(timeout=DEADLINE_S)
    tasks.good.delay("two").get(timeout=DEADLINE_S)
    with pytest.raises(RuntimeError):
        tasks.breaks.apply_async(("b",), queue="critical").get(timeout=DEADLINE_S)
    holder = tasks.waits.delay("w", str(gate))
    wait_until(lambda: stage.record("letters.waits:waits:w"), DEADLINE_S, "a holder")
    tasks.waits.delay("w", str(gate))

    wait_for(
        worker,
        {
            ("celery_idem_claims_total", ("letters.good",)): 2,
            ("celery_idem_completions_total", ("letters.good",)): 2,
            ("celery_idem_duplicates_total", ("letters.good",)): 1,
            ("celery_idem_claims_total", ("letters.breaks",)): 1,
            ("celery_idem_releases_total", ("failure", "letters.breaks")): 1,
            ("celery_idem_letters_total", ("critical", "failure", "letters.breaks")): 1,
            ("celery_idem_letters_stored", ()): 1,
            ("celery_idem_conflicts_total", ("wait", "letters.waits")): 1,
            ("celery_idem_lane_running", ("celery",)): 1,
            ("celery_idem_broker_up", ()): 1,
            ("celery_idem_letter_store_up", ()): 1,
        },
    )
    gate.touch()
    holder.get(timeout=DEADLINE_S)


def test_crashes_and_what_dead_children_counted_are_kept(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A child for every task, and three that are killed: their files are taken over."""
    with stage_of(tmp_path_factory) as stage:
        worker = stage.start_worker(concurrency=2, extra=["--max-tasks-per-child=1"])
        stage.tasks.pill.delay("p")
        for number in range(12):
            stage.tasks.good.delay(f"g{number}").get(timeout=DEADLINE_S)

        seen = wait_for(
            worker,
            {
                ("celery_idem_crashes_total", ("letters.pill",)): 3,
                ("celery_idem_claims_total", ("letters.good",)): 12,
                ("celery_idem_letters_total", ("celery", "poison", "letters.pill")): 1,
            },
        )
        # seen on Celery 5.5: a job is given to a second child when the first died before it could
        # say that it had begun: one delivery, two starts
        starts = stage.effects.count("start:p")
        assert seen["celery_idem_claims_total", ("letters.pill",)] == starts >= 3
        files = list(Path(worker.directory).glob("celery-idem-metrics-*/*.counts"))
        assert len(files) <= 4  # not one for each of the sixteen children


@pytest.mark.parametrize("scheme", ["redis", "redis-streams"])
def test_depth_and_age_of_every_lane(tmp_path_factory: pytest.TempPathFactory, scheme: str) -> None:
    with stage_of(tmp_path_factory, scheme=scheme) as stage:
        for number in range(5):
            stage.tasks.good.apply_async((f"c{number}",), queue="critical")
        worker = stage.start_worker(queues=("celery",))

        seen = wait_for(
            worker,
            {
                ("celery_idem_lane_depth", ("critical",)): 5,
                ("celery_idem_lane_depth", ("celery",)): 0,
                ("celery_idem_lane_oldest_seconds", ("celery",)): 0,
                ("celery_idem_lane_paused", ("critical",)): 0,
            },
        )
        age_s = seen["celery_idem_lane_oldest_seconds", ("critical",)]
        assert age_s > 0
        assert scrape(worker)["celery_idem_lane_oldest_seconds", ("critical",)] > age_s


def test_a_broker_that_is_down_is_said_and_the_rest_is_told(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage_of(tmp_path_factory) as stage:
        worker = stage.start_worker(queues=tuple(LANES))
        stage.tasks.good.delay("before").get(timeout=DEADLINE_S)

        stage.server.kill()

        seen = wait_for(
            worker, {("celery_idem_broker_up", ()): 0, ("celery_idem_letter_store_up", ()): 0}
        )
        assert seen["celery_idem_claims_total", ("letters.good",)] == 1
        assert ("celery_idem_lane_depth", ("celery",)) not in seen
        stage.server.start()
        wait_for(worker, {("celery_idem_broker_up", ()): 1, ("celery_idem_letters_stored", ()): 0})


def test_a_flood_and_its_pause_are_seen(tmp_path_factory: pytest.TempPathFactory) -> None:
    letters = {"flood_per_minute": 2, "flood_pause_s": 600}
    with stage_of(tmp_path_factory, dead_letters=letters) as stage:
        worker = stage.start_worker(queues=tuple(LANES), concurrency=1)
        for number in range(10):
            stage.tasks.breaks.apply_async((f"b{number}",), queue="critical")

        wait_for(
            worker,
            {
                ("celery_idem_floods_total", ("letters.breaks",)): 1,
                ("celery_idem_lane_paused", ("critical",)): 1,
                ("celery_idem_lane_paused", ("celery",)): 0,
            },
        )


def test_a_lost_lease_is_counted_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The child that ran and its main process both learn of it."""
    with stage_of(tmp_path_factory, lease_s=2) as stage:
        gate = stage.gate("lost")
        frozen = stage.start_worker(concurrency=1)
        stage.tasks.waits.delay("l", str(gate))
        wait_until(lambda: stage.record("letters.waits:waits:l"), DEADLINE_S, "a claim")
        frozen.stop_tree()
        other = stage.start_worker(concurrency=1)
        wait_for(other, {("celery_idem_crashes_total", ("letters.waits",)): 1})

        frozen.cont_tree()
        gate.touch()

        wait_for(frozen, {("celery_idem_lease_losses_total", ("letters.waits",)): 1})
        wait_for(other, {("celery_idem_completions_total", ("letters.waits",)): 1})


def test_a_text_file_for_the_node_exporter(tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("textfile")
    settings = {"textfile": f"{target}/celery-{{hostname}}.prom", "every_s": 1}
    with stage_of(tmp_path_factory, metrics=settings) as stage:
        worker = stage.start_worker()
        stage.tasks.good.delay("one").get(timeout=DEADLINE_S)
        path = target / f"celery-{worker.hostname}.prom"

        def claims() -> float:
            if not path.exists():
                return 0
            return numbers(path.read_text()).get(("celery_idem_claims_total", ("letters.good",)), 0)

        wait_until(lambda: claims() == 1, DEADLINE_S, "the file")


def test_a_port_that_is_taken_stops_no_worker_and_is_tried_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", port)) as taken,
        stage_of(tmp_path_factory, metrics={"port": port}) as stage,
    ):
        worker = stage.start_worker()
        worker.wait_log(rf"metrics: 127\.0\.0\.1:{port} can't be listened on")
        assert stage.tasks.good.delay("on").get(timeout=DEADLINE_S) == "on"

        taken.close()

        assert port_of(worker) == port
        wait_for(worker, {("celery_idem_claims_total", ("letters.good",)): 1})


def test_the_next_worker_gets_the_port_of_one_that_was_killed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """No child keeps the socket open; and the files of the dead are removed."""
    port = free_port()
    with stage_of(tmp_path_factory, metrics={"port": port}) as stage:
        worker = stage.start_worker(concurrency=2, extra=["--max-tasks-per-child=1"])
        for number in range(4):
            stage.tasks.good.delay(f"k{number}").get(timeout=DEADLINE_S)
        worker.kill_parent()
        worker.wait_exit()

        worker.start()
        worker.wait_ready()

        assert port_of(worker) == port
        [kept] = Path(worker.directory).glob("celery-idem-metrics-*")
        assert kept.name.split("-")[3] == str(worker.pid)
        worker.term()
        worker.wait_exit()
        assert list(Path(worker.directory).glob("celery-idem-metrics-*")) == []


def test_a_worker_without_the_setting_counts_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage_of(tmp_path_factory, metrics={}) as stage:
        worker = stage.start_worker()
        stage.tasks.good.delay("one").get(timeout=DEADLINE_S)

        assert "metrics:" not in worker.log_text()
        assert list(Path(worker.directory).glob("celery-idem-metrics-*")) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prot": 1}, "did you mean 'port'"),
        ({"port": -1}, "at least 0"),
        ({"port": 70_000}, "at most 65535"),
        ({"port": "9808"}, "whole number"),
        ({"every_s": 0}, "at least 1"),
        ({"textfile": ""}, "non-empty"),
    ],
)
def test_a_bad_setting_is_said(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        MetricsSettings.from_dict(given)


def test_names_are_the_fields_own() -> None:
    """Counters without _total (the client adds it), one prefix, a sentence of help each."""
    for metric in (*names.COUNTERS, *names.GAUGES):
        assert re.fullmatch(r"celery_idem_[a-z_]+", metric.name)
        assert not metric.name.endswith("_total")
        assert metric.help.endswith(".")


def test_the_three_answers_to_a_conflict_are_three_numbers(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """C44: each is seen, and none is a success."""
    idem = json.dumps({"metrics": {"port": 0}, "lease_s": 3})
    with open_stage(tmp_path_factory, "tests.apps.idem", TEST_IDEM=idem) as stage:
        worker, tasks, gate = stage.start_worker(concurrency=4), stage.tasks, stage.gate("held")
        for task in (tasks.gated, tasks.gated_skip, tasks.gated_raise):
            task.delay("c", str(gate))
        for key in ("gated:gated:c", "gated_skip:gs:c", "gated_raise:gr:c"):
            wait_until(lambda key=key: stage.record(f"idem.{key}"), DEADLINE_S, "a holder")
        for task in (tasks.gated_skip, tasks.gated_raise, tasks.gated):
            task.delay("c", str(gate))

        seen = wait_for(
            worker,
            {
                ("celery_idem_conflicts_total", ("skip", "idem.gated_skip")): 1,
                ("celery_idem_conflicts_total", ("raise", "idem.gated_raise")): 1,
                ("celery_idem_claims_total", ("idem.gated",)): 1,
            },
        )
        assert ("celery_idem_duplicates_total", ("idem.gated_skip",)) not in seen
        wait_until(
            lambda: scrape(worker).get(("celery_idem_conflicts_total", ("wait", "idem.gated"))),
            DEADLINE_S,
            "the third",
        )
        gate.touch()
