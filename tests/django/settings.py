"""The Django project of the tests: a small shop, and the databases that records can be kept in.

Read from the environment: ``TEST_DATABASE_URL`` and ``TEST_OTHER_URL`` (the aliases ``default`` and
``other``; each ``sqlite:///path``, ``postgresql://…`` or ``mysql://…``), ``TEST_IDEM`` (JSON).
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.services import MARIADB_URL, POSTGRES_URL

# A pytest that another one starts, pytest-xdist's too, inherits that one's environment, and must
# not share databases with it: the first to end drops them. The Celery workers that a test starts
# must share them with their test.
if "pytest" in sys.modules and os.environ.get("TEST_DATABASE_OWNER") != str(os.getpid()):
    os.environ["TEST_DATABASE_OWNER"] = str(os.getpid())
    os.environ.pop("TEST_DATABASE_MARK", None)
    os.environ.pop("TEST_DATABASE_FOLDER", None)

#: a name for what this test session makes on the shared servers, which other machines may use, too
MARK = os.environ.setdefault(
    "TEST_DATABASE_MARK", f"idem_test_{os.getpid()}_{secrets.token_hex(4)}"
)
FOLDER = os.environ.setdefault("TEST_DATABASE_FOLDER", tempfile.mkdtemp(prefix="idem-django-"))
ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}


def database(url: str) -> dict[str, Any]:
    """The entry of ``DATABASES`` for a URL."""
    parts = urlsplit(url)
    engine = f"django.db.backends.{ENGINES[parts.scheme]}"
    if parts.scheme == "sqlite":
        return {"ENGINE": engine, "NAME": parts.path[1:]}
    if parts.scheme == "mysql":
        use_pymysql()
    return {
        "ENGINE": engine,
        "NAME": parts.path[1:],
        "HOST": parts.hostname or "127.0.0.1",
        "PORT": str(parts.port or ""),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        # Django before 5.0 speaks three-byte UTF-8 to MariaDB unless it is told
        "OPTIONS": {"charset": "utf8mb4"} if parts.scheme == "mysql" else {},
    }


def use_pymysql() -> None:
    """Django knows mysqlclient only; PyMySQL can stand in for it, and needs no compiler."""
    import pymysql

    pymysql.version_info = (2, 2, 7, "final", 0)  # type: ignore[assignment]
    pymysql.install_as_MySQLdb()


def on_server(url: str, name: str) -> str:
    """The URL of another database on the same server."""
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def sqlite_file(name: str) -> str:
    """The URL of a file of this session."""
    return f"sqlite:///{FOLDER}/{name}.sqlite3"


SECRET_KEY = "for the tests only"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.django.urls"
STATIC_URL = "static/"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_celery_results",
    "celery_idem.django",
    "tests.django.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": database(os.environ.get("TEST_DATABASE_URL") or sqlite_file("default")),
    "other": database(os.environ.get("TEST_OTHER_URL") or sqlite_file("other")),
}
if "pytest" in sys.modules:
    # Not in a worker, whether it has a database or none: from Django 6.0 on its checks connect to
    # every alias, and a test makes only the databases that it needs.
    DATABASES |= {
        "sqlite": database(sqlite_file("records")),
        "postgres": database(on_server(POSTGRES_URL, MARK)),
        "mariadb": database(on_server(MARIADB_URL, MARK)),
    }
CELERY_IDEM = json.loads(os.environ.get("TEST_IDEM", '{"store": "django"}'))
