"""``manage.py idem``: the same as ``celery -A proj idem``."""

from __future__ import annotations

from celery_idem.django.management.click_command import ClickCommand


class Command(ClickCommand):
    """Look at keys, free and revoke them, prune expired records."""

    help = "Idempotency keys of celery_idem: show, list, release, revoke, prune, stats, …"
    group = "celery_idem.cli.idem:idem"
