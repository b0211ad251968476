"""Settings of the shop. What differs from place to place comes from the environment:

``DATABASE_URL``   default: SQLite, ``shop.sqlite3`` beside ``manage.py``
``SHOP_BROKER``    default: ``redis-streams://localhost:6379/0``, which loses no message of a
                   killed worker; results are kept on the same server
``SHOP_STORE``     where records of jobs are kept; default: Redis before the database, and with
                   SQLite, which has one writer at a time, Redis alone
``SHOP_LEASE_S``   seconds after which a dead worker's job is another's; default 30
``SHOP_GATEWAY``   address of the payment gateway, ``host:port``
``SHOP_MAIL``      address of the mail provider; default: mails are printed
``SHOP_SECRET``    Django's secret key; without one, this is a developer's machine
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery.schedules import crontab

from example_project.shop.database import IMMEDIATE, database

FOLDER = Path(__file__).resolve().parents[1]

SECRET_KEY = os.environ.get("SHOP_SECRET", "a secret that everybody knows")
DEBUG = "SHOP_SECRET" not in os.environ
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
ROOT_URLCONF = "example_project.shop.urls"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "celery_idem.django",
    "example_project.shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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

# --- the database: each web request is one transaction, and jobs start when it has committed ---

DATABASE_URL = os.environ.get("DATABASE_URL", f"sqlite:///{FOLDER / 'shop.sqlite3'}")
DATABASES = {"default": {**database(DATABASE_URL), "CONN_HEALTH_CHECKS": True}}
SQLITE = DATABASES["default"]["ENGINE"].endswith("sqlite3")
DATABASES["default"]["ATOMIC_REQUESTS"] = IMMEDIATE or not SQLITE

# --- the outside world -------------------------------------------------------------------------

PAYMENT_GATEWAY = os.environ.get("SHOP_GATEWAY", "localhost:8000")
MAIL_PROVIDER = os.environ.get("SHOP_MAIL", "")
EMAIL_BACKEND = (
    "example_project.shop.mails.ProviderBackend"
    if MAIL_PROVIDER
    else "django.core.mail.backends.console.EmailBackend"
)
DEFAULT_FROM_EMAIL = "orders@shop.example"

# --- Celery ------------------------------------------------------------------------------------

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER", "redis-streams://localhost:6379/0")
CELERY_RESULT_BACKEND = CELERY_BROKER_URL.replace("redis-streams://", "redis://")
CELERY_TASK_DEFAULT_QUEUE = "normal"
CELERY_TASK_TIME_LIMIT = 300
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BEAT_SCHEDULE = {
    # a database does not forget by itself
    "prune": {"task": "celery_idem.prune", "schedule": crontab(hour=4, minute=0)},
}

CELERY_IDEM: dict[str, Any] = {
    "lease_s": float(os.environ.get("SHOP_LEASE_S", "30")),
    "lanes": {"critical": 10, "normal": 5, "low": 1},
    "dead_letters": {"store": CELERY_RESULT_BACKEND},
}
if store := os.environ.get("SHOP_STORE") or ("" if SQLITE else "tiered"):
    CELERY_IDEM["store"] = store
