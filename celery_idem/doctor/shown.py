"""Where in the source an effect is."""

from __future__ import annotations

from celery_idem.doctor.finding import Place
from celery_idem.doctor.source.effects import Effect


def place_of(effect: Effect) -> Place:
    """The lines of the call itself."""
    return Place(str(effect.module.path), effect.line, effect.end_line)
