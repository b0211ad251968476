"""Fencing for a project's own rows: a holder that lost its lease writes nothing (S-V6).

::

    class Order(Fenced):
        status = models.CharField(…)

    Order.objects.filter(pk=order_id).fenced(self.fence).update(status="paid")

The number in the row only grows. A worker that was paused while another took the job over comes
with a smaller one: its update changes no row and raises :class:`LeaseLost`, which ends the run; its
message then takes over what the other has made of it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models, transaction

from celery_idem.core.errors import LeaseLost


class FencedQuerySet(models.QuerySet[Any]):
    """A queryset whose writes can present a fence."""

    _fence: int | None = None

    def fenced(self, fence: int) -> FencedQuerySet:
        """The same rows; ``update``, ``bulk_update`` and ``delete`` then touch them only as the
        holder of this fence, and ``create`` gives it to the new row.

        0, which a task that is called directly has, is no fence. Raises ``TypeError`` for what is
        none: ``None`` or a text would guard nothing in silence.
        """
        if isinstance(fence, bool) or not isinstance(fence, int) or fence < 0:
            raise TypeError(f"fenced() takes a task's self.fence, a whole number, not {fence!r}")
        clone: FencedQuerySet = self.all()
        clone._fence = fence or None
        return clone

    def update(self, **values: Any) -> int:
        """Django's. Fenced, it writes the fence along, and raises :class:`LeaseLost` without
        changing anything when one of the rows has a greater one."""
        fence = self._fence
        if fence is None:
            return super().update(**values)
        with transaction.atomic(using=self.db):
            changed = super(FencedQuerySet, self.filter(fence__lte=fence)).update(
                **values, fence=fence
            )
            # After the write: whoever came before it has committed, and is seen.
            newer = self.model._base_manager.using(self.db).filter(fence__gt=fence)
            if newer.filter(pk__in=self.values("pk")).exists():
                raise LeaseLost(
                    f"{self.model._meta.label}: a row was written under a fence above {fence}: "
                    "somebody else has taken over this work"
                )
        return changed

    update.alters_data = True  # type: ignore[attr-defined]

    def delete(self) -> tuple[int, dict[str, int]]:
        """Django's. Fenced, it raises :class:`LeaseLost` and deletes nothing when one of the rows
        has a greater fence."""
        if self._fence is None:
            return super().delete()
        with transaction.atomic(using=self.db):
            self.update()
            return super().delete()

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def create(self, **values: Any) -> Any:
        """Django's. Fenced, the row begins with this fence."""
        return super().create(**({"fence": self._fence} if self._fence else {}), **values)

    create.alters_data = True  # type: ignore[attr-defined]

    def update_or_create(self, *args: Any, **options: Any) -> Any:
        """Django's. Fenced, it is refused: it saves a row that it has read, whatever its fence."""
        if self._fence is not None:
            raise TypeError(
                "fenced() can't guard update_or_create(): create() the row, and where it is there "
                "(IntegrityError), fenced(…).update() it"
            )
        return super().update_or_create(*args, **options)

    update_or_create.alters_data = True  # type: ignore[attr-defined]

    def _clone(self) -> FencedQuerySet:
        clone: FencedQuerySet = super()._clone()  # type: ignore[misc]
        clone._fence = self._fence
        return clone


class Fenced(models.Model):
    """Abstract: a column ``fence``, and ``objects`` with :meth:`FencedQuerySet.fenced`."""

    fence: ClassVar[Any] = models.BigIntegerField(default=0, editable=False)

    objects: ClassVar[Any] = FencedQuerySet.as_manager()

    class Meta:
        abstract = True
