"""What the transport raises of its own."""

from __future__ import annotations

from celery_idem.core.errors import IdemError


class Unroutable(IdemError):
    """A task was sent to an exchange that no queue is bound to: it would be lost."""
