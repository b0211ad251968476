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
    The row of a forgotten record stays until it is pruned, empty but for its fence.
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


class RunTime(models.Model):
    """How many runs of a task on a lane took how long, on one day: what ``idem tune`` reads.

    ``day``: days since 1970; ``bucket``: as :mod:`celery_idem.core.histogram` counts.
    """

    digest = models.CharField(max_length=64, primary_key=True, editable=False)
    task = models.TextField()
    lane = models.TextField()
    day = models.IntegerField(db_index=True)
    bucket = models.IntegerField()
    runs = models.BigIntegerField()

    class Meta:
        db_table = "idem_run_time"
        verbose_name = "run time"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.task}: {self.runs}"


class DeadLetter(models.Model):
    """A :class:`celery_idem.deadletters.letter.Letter` as a row; ``data`` holds what no column
    does. The short texts are kept as :func:`celery_idem.django.letters_rows.column_text` says.

    ``version`` grows with every write that was decided after reading the row.
    """

    id = models.CharField(max_length=64, primary_key=True, editable=False)
    position = models.BigIntegerField(unique=True)
    task = models.CharField(max_length=255)
    lane = models.CharField(max_length=255)
    queue = models.CharField(max_length=255)
    key = models.CharField(max_length=255)
    group = models.CharField(max_length=255)
    reason = models.CharField(max_length=32)
    state = models.CharField(max_length=16)
    #: the state that it has again when whoever replays it gives it back
    rests = models.CharField(max_length=16)
    searched = models.TextField()
    data = models.TextField()
    body = models.BinaryField()
    history = models.TextField()
    original = models.TextField(null=True)
    times = models.BigIntegerField()
    first_died_ms = models.BigIntegerField()
    last_died_ms = models.BigIntegerField()
    holder = models.CharField(max_length=255)
    held_until_ms = models.BigIntegerField()
    token = models.CharField(max_length=32)
    version = models.BigIntegerField()

    class Meta:
        db_table = "idem_letter"
        verbose_name = "dead letter"
        ordering: ClassVar = ["-position"]
        default_permissions = ("view", "delete")
        permissions: ClassVar = [("replay_deadletter", "Can replay dead letters")]
        #: one for each filter; each is read from its end, the newest letter first. A task's also
        #: answers which faults it has.
        indexes: ClassVar = [
            models.Index(fields=["task", "position", "group"], name="idem_letter_task"),
            models.Index(fields=["lane", "position"], name="idem_letter_lane"),
            models.Index(fields=["queue", "position"], name="idem_letter_queue"),
            models.Index(fields=["group", "position"], name="idem_letter_group"),
            models.Index(fields=["reason", "position"], name="idem_letter_reason"),
            models.Index(fields=["state", "position"], name="idem_letter_state"),
            models.Index(fields=["key"], name="idem_letter_key"),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.id}"


class DeadLetterTrail(models.Model):
    """The history of a letter that was sent again, until ``expires_ms``: if its message dies once
    more, it knows its past."""

    id = models.CharField(max_length=64, primary_key=True, editable=False)
    first_died_ms = models.BigIntegerField()
    times = models.BigIntegerField()
    history = models.TextField()
    original = models.TextField(null=True)
    expires_ms = models.BigIntegerField(db_index=True)

    class Meta:
        db_table = "idem_letter_trail"
        verbose_name = "trail of a replayed letter"
        verbose_name_plural = "trails of replayed letters"
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.id)


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
