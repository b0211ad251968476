"""The support itself: the ledger, the wait, the clock, RabbitMQ's corner."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from kombu import Queue

from tests.support import leftovers
from tests.support.effects import Effects
from tests.support.processes import end_group, spawn
from tests.support.waiting import DeadlineMissed, wait_until

BUMP = """
import sys
from tests.support.effects import Effects
for number in range(200):
    Effects(sys.argv[1]).bump("k", number=number, filler="x" * 500)
"""


def test_lines_of_several_processes_never_mix(effects):
    writers = [subprocess.Popen([sys.executable, "-c", BUMP, str(effects.path)]) for _ in range(3)]

    assert [writer.wait(60) for writer in writers] == [0, 0, 0]

    assert effects.count("k") == 600
    for writer in writers:
        mine = [line["number"] for line in effects.lines("k") if line["pid"] == writer.pid]
        assert mine == list(range(200))


def test_a_half_written_line_is_not_read(effects):
    effects.bump("whole")
    with effects.path.open("ab") as file:
        file.write(b'{"key": "ha')

    assert effects.keys() == ["whole"]


def test_tasks_find_the_ledger_by_the_environment(effects):
    Effects.from_env().bump("k")

    assert effects.lines("k")[0]["pid"] == os.getpid()


def test_a_wait_in_vain_names_what_was_waited_for():
    with pytest.raises(DeadlineMissed, match=r"0\.05 s in vain for the moon"):
        wait_until(lambda: False, 0.05, "the moon")


def test_a_moved_clock_moves_wall_time_only(clock_skew):
    code = (
        "import time; t = time.monotonic(); time.sleep(0.05);"
        "print(time.time(), 0.04 < time.monotonic() - t < 30)"
    )

    def wall_clock() -> float:
        env = os.environ | clock_skew.env
        out = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
        seconds, monotonic_is_right = out.split()
        assert monotonic_is_right == "True"
        return float(seconds)

    clock_skew.set(-3600.5)
    assert wall_clock() == pytest.approx(time.time() - 3600.5, abs=30)
    clock_skew.set(86400)
    assert wall_clock() == pytest.approx(time.time() + 86400, abs=30)


@pytest.mark.rabbitmq
def test_a_queue_on_rabbitmq_holds_what_was_sent(rabbitmq):
    name = rabbitmq.queue("orders")
    assert rabbitmq.depth(name) == 0

    with rabbitmq.connection() as link:
        link.SimpleQueue(Queue(name, routing_key=name)).put({"id": 1})

    wait_until(lambda: rabbitmq.depth(name) == 1, what="the message in the queue")


@pytest.mark.rabbitmq
def test_a_worker_works_on_rabbitmq(rabbitmq, effects, load_app, start_worker):
    plain = load_app("tests.apps.plain", TEST_BROKER=rabbitmq.url, TEST_BACKEND="rpc://")
    start_worker("tests.apps.plain:app")

    plain.effect.delay("k")

    effects.wait_count("k", 1)


def test_an_orphan_of_a_killed_process_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv(leftovers.ENV, "a mark of this test")
    parent = spawn(["/bin/sh", "-c", "sleep 300 & echo child $!; wait"], log := tmp_path / "log")
    try:
        wait_until(lambda: "child" in log.read_text(), what="the child")
        child = int(log.read_text().split()[1])
        parent.kill()
        parent.wait(10)

        assert leftovers.end_all("a mark of this test") == [f"{child} sleep 300"]

        assert leftovers.left_behind("a mark of this test") == []
    finally:
        end_group(parent)


def test_a_process_that_has_got_the_number_of_an_ended_one_is_left_alone(tmp_path):
    ended = spawn(["true"], tmp_path / "log")
    ended.wait(30)
    other = spawn(["sleep", "60"], tmp_path / "log")
    try:
        ended.pid = other.pid  # as the kernel would give it after a round of all numbers

        end_group(ended)

        assert other.poll() is None
    finally:
        end_group(other)
    assert other.returncode == -9
