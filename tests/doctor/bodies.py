"""Tasks of a test by their body alone, for the checks that read source."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.doctor.absent import stand_ins

IMPORTS = """
import http.client, urllib.request, requests, httpx, stripe, smtplib, redis
import uuid, time, random, datetime, hashlib
from django.core.mail import send_mail, EmailMessage
from django.core.cache import cache
from django.db.models import F
from django.db import transaction
from celery_idem import idempotent

r = redis.Redis()
session = requests.Session()
"""


@pytest.fixture
def packages() -> Iterator[None]:
    pytest.importorskip("django")
    with stand_ins():
        yield


@pytest.fixture
def body(packages: None, project: Callable[..., Any]) -> Callable[..., list[str]]:
    """``body(source, decorator)``: the ids that a task with this body gets, and their lines."""

    def found(source: str, decorator: str = "@app.task(acks_late=True)", rest: str = "") -> Any:
        text = textwrap.indent(textwrap.dedent(source).strip(), "    ")
        helpers = textwrap.dedent(rest)
        examined = project(f"{IMPORTS}\n{helpers}\n{decorator}\ndef job(self, order, n):\n{text}\n")
        return [it.check.id for it in examined.report(*SOURCE_CHECKS).found]

    return found


SOURCE_CHECKS = ("IDEM020", "IDEM050", "IDEM051", "IDEM052", "IDEM053", "IDEM054", "IDEM055")
LATE = "@app.task(acks_late=True)"
IDEMPOTENT = "@app.task(base=IdempotentTask, bind=True, idem_key='{order}')"
