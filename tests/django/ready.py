"""Importing this makes Django ready; it comes before any import of models."""

from __future__ import annotations

import os

SETTINGS = "tests.django.settings"
if os.environ.setdefault("DJANGO_SETTINGS_MODULE", SETTINGS) != SETTINGS:
    raise RuntimeError(
        f"a test module imported what sets DJANGO_SETTINGS_MODULE to "
        f"{os.environ['DJANGO_SETTINGS_MODULE']}; import it inside the test"
    )

import django  # noqa: E402

django.setup()
