"""``manage.py dlq``: the same as ``celery -A proj dlq``."""

from __future__ import annotations

from celery_idem.django.management.click_command import ClickCommand


class Command(ClickCommand):
    """Look at dead letters, mend them, send them again."""

    help = "Dead letters of celery_idem: list, groups, show, replay, edit, purge, export, …"
    group = "celery_idem.cli.dlq:dlq"
