"""The tables. Times are milliseconds of the database's own clock, since 1970.

Keys and step names are found by their SHA-256: its index is as small for long keys as for short
ones, and two keys that differ only in case stay two keys whatever the database's collation says.
"""

# The types of fields come from a plugin of mypy that wants a project's settings.
# mypy: disable-error-code="var-annotated"

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

from django.db import models


def digest_of(*parts: str) -> str:
    """64 hex digits that stand for a key, or for a key and a step's name."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


class KeyRecord(models.Model):
    """What is known of one key: a :class:`celery_idem.core.record.Record` as a row.

    ``version`` grows with every write; each is one ``UPDATE … WHERE version = <the one seen>``.
    """

    digest = models.CharField(max_length=64, primary_key=True, editable=False)
    key = models.TextField()
    version = models.BigIntegerField()
    state = models.CharField(max_length=8)
    owner = models.TextField()
    fence = models.BigIntegerField()
    lease_until_ms = models.BigIntegerField()
    lease_ms = models.BigIntegerField()
    retention_ms = models.BigIntegerField()
    fingerprint = models.TextField()
    task_id = models.TextField()
    attempt = models.BigIntegerField()
    runs = models.BigIntegerField()
    crashes = models.BigIntegerField()
    failures = models.BigIntegerField()
    releases = models.BigIntegerField()
    revoked = models.BooleanField()
    result = models.BinaryField(null=True)
    created_ms = models.BigIntegerField()
    done_ms = models.BigIntegerField()
    #: The only index beside the primary key: pruning reads it from its start, the admin's list
    #: from its end.
    expires_ms = models.BigIntegerField(db_index=True)
    step_count = models.IntegerField()
    settled = models.TextField()
    published = models.TextField()

    class Meta:
        db_table = "idem_record"
        verbose_name = "record"
        ordering: ClassVar = ["-expires_ms"]
        permissions: ClassVar = [
            ("release_keyrecord", "Can release keys"),
            ("revoke_keyrecord", "Can revoke keys"),
        ]

    def __str__(self) -> str:
        return str(self.key)


class KeyStep(models.Model):
    """A step of a record that is done, or marked before it runs."""

    digest = models.CharField(max_length=64, primary_key=True, editable=False)
    #: No constraint in the database: records are pruned in bulk, their steps before them.
    record: models.ForeignKey[Any, Any] = models.ForeignKey(
        KeyRecord, models.DO_NOTHING, db_constraint=False, related_name="steps"
    )
    name = models.TextField()
    value = models.BinaryField()

    class Meta:
        db_table = "idem_step"
        verbose_name = "step"

    def __str__(self) -> str:
        return str(self.name)


class InboxEntry(models.Model):
    """A transactional step that is done: written in the transaction of its effect, on whatever
    database that is."""

    digest = models.CharField(max_length=64, primary_key=True, editable=False)
    key = models.TextField()
    name = models.TextField()
    fence = models.BigIntegerField()
    value = models.BinaryField()
    created_ms = models.BigIntegerField()
    expires_ms = models.BigIntegerField(db_index=True)

    class Meta:
        db_table = "idem_inbox"
        verbose_name = "transactional step"
        verbose_name_plural = "transactional steps"
        ordering: ClassVar = ["-expires_ms"]

    def __str__(self) -> str:
        return f"{self.key}: {self.name}"
