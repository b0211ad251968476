"""Answers that say "not now": a lost connection to everybody who reads them.

A server that answers and does not do it (no replica in reach, a full disk or memory, a master that
was demoted) is as good as away. Celery and kombu try again what lost its connection, and end a
worker that is told anything else.
"""

from __future__ import annotations

from typing import Any

import redis
from redis.exceptions import ResponseError

from celery_idem.stores.redis.scripts import is_transient


class NotReady(redis.ConnectionError):
    """The server refused for now: what was asked has not been done."""


class _Patient:
    """Before a connection class of redis-py: its refusals for now are lost connections."""

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError as error:
            if not is_transient(error):
                raise
            raise NotReady(str(error)) from error


def patient(connection_class: type) -> type:
    """The same connection class, with :class:`NotReady` for a server that is not."""
    if issubclass(connection_class, _Patient):
        return connection_class
    return type(f"Patient{connection_class.__name__}", (_Patient, connection_class), {})
