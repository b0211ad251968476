"""Publishing when Django's transaction commits, with the task id known at once."""

from __future__ import annotations

import functools
from typing import Any

from celery.utils import uuid


class OnCommit:
    """Celery's ``DjangoTask`` methods, which a task with another base would lose.

    Nothing is published, and nothing is claimed, when the transaction rolls back.
    """

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> str:
        """``delay`` when the transaction commits (at once outside one). Returns the task id."""
        return self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(
        self, args: Any = None, kwargs: Any = None, *, using: str | None = None, **options: Any
    ) -> str:
        """``apply_async`` when the transaction on the database alias ``using`` (default: the
        default one) commits. Returns the task id, chosen here unless ``task_id`` is given."""
        from django.db import transaction

        task_id: str = options.pop("task_id", None) or uuid()
        publish = functools.partial(
            self.apply_async,  # type: ignore[attr-defined]
            args,
            kwargs,
            task_id=task_id,
            **options,
        )
        transaction.on_commit(publish, using=using)
        return task_id
