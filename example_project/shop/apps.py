"""The shop as a Django app."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class ShopConfig(AppConfig):
    """Label ``shop``."""

    name = "example_project.shop"
    label = "shop"

    def ready(self) -> None:
        connection_created.connect(_let_sqlite_read_while_it_writes)


def _let_sqlite_read_while_it_writes(connection: Any, **_: Any) -> None:
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode = WAL")
