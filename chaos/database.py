"""The shop's database, as Django settings: an SQLite file of the run, ``CHAOS_DATABASE``.

Its table ``packed`` is written by a transactional step and by nothing else, one row each time.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

PATH_ENV = "CHAOS_DATABASE"
#: Seconds that a writer waits for another, who may be frozen.
LOCK_TIMEOUT_S = 30

SECRET_KEY = "not one"
USE_TZ = True
TIME_ZONE = "UTC"  # Django sets the process's
INSTALLED_APPS = ["celery_idem.django"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get(PATH_ENV, ":memory:"),
        "OPTIONS": {"timeout": LOCK_TIMEOUT_S},
    }
}


def create(path: Path) -> None:
    """Make the tables: the inbox of transactional steps, and ours."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE packed (key TEXT, fence INTEGER)")
    command = [sys.executable, "-m", "django", "migrate", "--settings", "chaos.database", "-v", "0"]
    env = dict(os.environ) | {PATH_ENV: str(path)}
    subprocess.run(command, env=env, cwd=Path(__file__).resolve().parents[1], check=True)


def packed(path: Path) -> Mapping[str, int]:
    """key → how often it was packed: committed rows."""
    with closing(sqlite3.connect(path, timeout=LOCK_TIMEOUT_S)) as db:
        return dict(db.execute("SELECT key, count(*) FROM packed GROUP BY key").fetchall())
