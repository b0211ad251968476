"""Keeps the messages of living workers invisible, and brings those of dead ones back in time.

For kombu's own Redis transport. ``docs/visibility.md`` says what it does, and what it writes.
"""

from __future__ import annotations

from celery_idem.visibility.keeper import holder_lost
from celery_idem.visibility.step import VisibilityStep, install_visibility

__all__ = ["VisibilityStep", "holder_lost", "install_visibility"]
