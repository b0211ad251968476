"""The suite's own rules: what REQUIRE_ALL makes of a skip, and that no process may stay behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.workers import ROOT

INI = """
[pytest]
markers =
    platform
    python_min
    rabbitmq
    postgres
    mariadb
"""

SKIPS = """
import pytest

def test_runs():
    assert True

def test_asks_for_what_is_absent():
    pytest.skip("no such server")

@pytest.mark.skipif(True, reason="marked so")
def test_is_marked():
    assert False

@pytest.mark.platform("no-such-system")
def test_of_another_system():
    assert False

@pytest.mark.python_min(9, 9)
def test_of_a_later_python():
    assert False

@pytest.mark.xfail(strict=True)
def test_that_is_known_to_fail():
    assert False

@pytest.mark.rabbitmq
def test_on_rabbitmq():
    assert True
"""

LEAVES_A_PROCESS = """
import subprocess

def test_leaves_a_process():
    script = "sleep 300 & echo started; exec sleep 301"
    process = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"started\\n"
"""


@pytest.fixture
def run_suite(tmp_path):
    """``run_suite(source, *options, **env)``: return code and output of a suite with our rules."""

    def run(source: str, *options: str, **env: str) -> tuple[int, str]:
        (tmp_path / "test_inner.py").write_text(source)
        (tmp_path / "pytest.ini").write_text(INI)
        command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
        command += ["-p", "no:celery", "-c", str(tmp_path / "pytest.ini"), "-ra", *options]
        clean = {k: v for k, v in os.environ.items() if k not in ("REQUIRE_ALL", "PYTEST_ADDOPTS")}
        done = subprocess.run(
            [*command, str(tmp_path)],
            cwd=tmp_path,
            env={**clean, "PYTHONPATH": str(ROOT), **env},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


#: a port on which nobody listens
NOBODY = "amqp://guest:guest@127.0.0.1:1//"


def test_what_is_absent_is_skipped_with_its_reason(run_suite):
    code, output = run_suite(SKIPS, RABBITMQ_URL=NOBODY)

    assert code == 0
    assert "1 passed, 5 skipped, 1 xfailed" in output
    assert "no RabbitMQ answers at amqp://127.0.0.1:1" in output
    assert "for Python 9.9 and later" in output


def test_a_skip_is_a_failure_where_all_is_required(run_suite):
    code, output = run_suite(SKIPS, REQUIRE_ALL="1", RABBITMQ_URL=NOBODY)

    assert code == 1
    assert "1 failed, 1 passed, 2 skipped, 1 xfailed, 2 errors" in output  # errors: at set-up
    assert "REQUIRE_ALL is set, and this was skipped: Skipped: no such server" in output
    assert "REQUIRE_ALL is set, and this was skipped: Skipped: no RabbitMQ answers" in output


def test_a_module_that_skips_itself_fails_where_all_is_required(run_suite):
    source = "import pytest\npytest.importorskip('no_such_package_anywhere')\n"

    assert run_suite(source)[0] == pytest.ExitCode.NO_TESTS_COLLECTED
    code, output = run_suite(source, REQUIRE_ALL="1")
    assert code == pytest.ExitCode.INTERRUPTED
    assert "no_such_package_anywhere" in output


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_process_left_behind_fails_the_run_and_is_ended(run_suite, options):
    code, output = run_suite(LEAVES_A_PROCESS, *options)

    assert code == 1
    assert "sleep 300" in output
    assert output.count("LEFT BEHIND by the tests, now killed") == 2
