"""The databases that letters can be kept in."""

from __future__ import annotations

from tests.django.conftest import django_databases

__all__ = ["django_databases"]
