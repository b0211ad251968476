"""On the example shop, running as its ``make demo`` runs it, ``check`` has nothing to say."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from celery_idem.doctor.checks import CHECKS
from tests.doctor.conftest import PATIENCE_S

MANAGE = ["example_project/manage.py"]
CELERY = ["-m", "celery", "-A", "example_project.shop"]


def test_the_example_shop_with_its_workers_has_nothing_to_mend(
    redis_server, start_worker, tmp_path, monkeypatch
):
    pytest.importorskip("django")
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)  # other tests' project
    env = {
        "DATABASE_URL": f"sqlite:///{tmp_path}/shop.sqlite3",
        "SHOP_BROKER": redis_server.url().replace("redis", "redis-streams"),
    }

    def say(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, *words], env={**os.environ, **env, "PYTHONPATH": os.getcwd()},
            capture_output=True, text=True, timeout=110,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    assert say(*MANAGE, "migrate", "-v0")[0] == 0
    start_worker("example_project.shop", queues=["critical", "normal", "low"], env=env)

    # an old Celery is a true alarm on the oldest leg
    words = ["idem", "check", "--fail-level", "info", "--require-all", "--ignore", "IDEM070"]
    words += ["--timeout", str(PATIENCE_S)]
    both = [say(*CELERY, *words), say(*MANAGE, *words)]

    assert [code for code, _ in both] == [0, 0], both
    assert all(f"nothing found in {len(CHECKS) - 1} checks" in text for _, text in both), both
