"""Users of pytest-celery can test with this package, and without a Docker engine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("pytest_celery") is None, reason="pytest-celery is not installed"
)
def test_pytest_celerys_setup_works_on_local_processes(tmp_path):
    # a pytest of its own: the plugin must not be loaded in the one that runs this
    command = [sys.executable, "-m", "pytest", "-p", "celery", "-p", "no:cacheprovider"]
    command += ["--basetemp", str(tmp_path / "inner"), str(HERE / "pytest_celery_local")]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "DOCKER_"))}

    done = subprocess.run(command, cwd=HERE.parent, env=env, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]
    assert "skipped" not in done.stdout.splitlines()[-1]
