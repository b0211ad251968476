"""The shop: a Django project of one app, and its Celery app.

``celery -A example_project.shop worker -Q critical,normal,low``
"""

from __future__ import annotations

from example_project.shop.celery import app

__all__ = ["app"]
