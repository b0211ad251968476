"""Importing this makes Django ready; it comes before any import of models."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django.settings")

import django

django.setup()
