"""The Django app: label ``celery_idem``, tables ``idem_…``."""

from __future__ import annotations

from django.apps import AppConfig


class IdemConfig(AppConfig):
    """Makes records a part of the project's database and admin, runs the system checks, and sees
    to it that chords with results in the database count right."""

    name = "celery_idem.django"
    label = "celery_idem"
    verbose_name = "Idempotent jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from celery_idem.django import (
            checks,  # noqa: F401 - registers them
            chords,
        )

        chords.install()
