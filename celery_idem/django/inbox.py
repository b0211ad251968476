"""Transactional steps: the record "done" and the effect in one database transaction (S-V8).

The entry is inserted before the effect. Where two runs come at once, the second waits at the
primary key until the first has committed, and then reads its result; where the first rolls back,
the second runs. Nothing here depends on a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import OperationalError, connections, transaction
from django.db.models.constants import OnConflict

from celery_idem.core.errors import StepBusy, StepMisused
from celery_idem.core.record import Claim
from celery_idem.django.models import InboxEntry, digest_of
from celery_idem.django.rows import CLOCK_US, kept

#: Seconds after which a job comes back that found another run inside the same step.
BUSY_RETRY_S = 1.0
_WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE", "TRUNCATE", "CREATE", "DROP", "ALTER")
#: What the databases say when the other run kept its lock for too long.
_LOCKED = ("locked", "lock timeout", "lock wait timeout", "deadlock")
#: The same in PostgreSQL's codes, which are in no language: lock timeout, deadlock, and what a
#: strict isolation says when the other run has committed meanwhile.
_LOCKED_CODES = ("55P03", "40P01", "40001")


@dataclass(frozen=True, slots=True)
class InboxStep:
    """One transactional step: what to run, where, and how its record is written and read."""

    name: str
    using: str
    writes_too: tuple[str, ...]  #: further aliases that it may write to, in no transaction with it
    shows_key: bool  #: false: the key is kept hashed
    call: Callable[[], Any]
    pack: Callable[[Any], tuple[bytes, Any]]  #: a result's record, and it as a replay gives it
    unpack: Callable[[bytes], Any]  #: the inverse; refuses the record of another function
    note: Callable[[bytes], None]  #: called with the record once it is committed


def run_step(step: InboxStep, claim: Claim | None) -> Any:
    """Run the step unless the inbox says that it is done; its result either way.

    Without a claim (a direct call of the task) it just runs, in a transaction.

    Raises :class:`StepMisused` when the step writes to another database or marks its transaction
    for rollback, :class:`StepBusy` when another run is inside the same step for too long.
    """
    with transaction.atomic(using=step.using):
        if claim is None:
            return _run(step)
        packed = _earlier(step, claim)
        if packed is None:
            packed, value = step.pack(_run(step))
            InboxEntry.objects.using(step.using).filter(
                digest=digest_of(claim.key, step.name)
            ).update(value=packed)
        else:
            value = step.unpack(packed)
        done = packed
        # Not before the outermost transaction has committed: until then nothing is done.
        transaction.on_commit(lambda: step.note(done), using=step.using)
        return value


def _run(step: InboxStep) -> Any:
    with _only_here(step):
        value = step.call()
    if transaction.get_rollback(using=step.using):
        raise StepMisused(
            f"step {step.name!r} marked its transaction for rollback and returned: its effect "
            "would be undone and the step taken for done; raise an exception instead"
        )
    return value


def _earlier(step: InboxStep, claim: Claim) -> bytes | None:
    """The record of an earlier run; ``None`` when the entry is ours and the step is to be run."""
    connection = connections[step.using]
    try:
        if _insert(connection, step, claim):
            return None
    except OperationalError as error:
        if not _is_busy(error):
            raise
        raise StepBusy(
            f"step {step.name!r}: another run of {claim.key!r} is, or was, inside it ({error})",
            BUSY_RETRY_S,
        ) from error
    digest = digest_of(claim.key, step.name)
    now_ms = _clock_ms(connection)
    # Locking reads see what was committed last, whatever the isolation level shows.
    rows = InboxEntry.objects.using(step.using).filter(digest=digest)
    if connection.features.has_select_for_update:
        rows = rows.select_for_update()
    entry = rows.get()
    expires_ms = now_ms + claim.retention_ms
    if entry.expires_ms <= now_ms:
        rows.update(fence=claim.fence, value=b"", created_ms=now_ms, expires_ms=expires_ms)
        return None
    rows.update(expires_ms=expires_ms)
    return bytes(entry.value)


def _is_busy(error: OperationalError) -> bool:
    if getattr(error.__cause__, "sqlstate", None) in _LOCKED_CODES:
        return True
    return any(sign in str(error).lower() for sign in _LOCKED)


def _insert(connection: Any, step: InboxStep, claim: Claim) -> bool:
    """The entry is there now; ``False`` when it was before."""
    return insert_entry(
        connection,
        digest=digest_of(claim.key, step.name),
        key=claim.key if step.shows_key else digest_of(claim.key),
        name=step.name,
        fence=claim.fence,
        value=b"",
        retention_ms=claim.retention_ms,
    )


def insert_entry(
    connection: Any, *, digest: str, key: str, name: str, fence: int, value: bytes,
    retention_ms: int,
) -> bool:  # fmt: skip
    """Insert an entry where there is none; ``False`` when there is. Waits for a transaction that
    has inserted the same and is still open."""
    ops, quote = connection.ops, connection.ops.quote_name
    names = ("digest", "key", "name", "fence", "value", "created_ms", "expires_ms")
    clock_ms = f"({CLOCK_US[connection.vendor]}) / 1000"
    if connection.vendor == "mysql":
        clock_ms = clock_ms.replace(" / ", " DIV ")
    fields = [InboxEntry._meta.get_field(name) for name in names]
    suffix = ops.on_conflict_suffix_sql(fields, OnConflict.IGNORE, [], ["digest"])
    sql = (
        f"{ops.insert_statement(on_conflict=OnConflict.IGNORE)} "
        f"{quote(InboxEntry._meta.db_table)} ({', '.join(quote(name) for name in names)}) "
        f"VALUES (%s, %s, %s, %s, %s, {clock_ms}, {clock_ms} + %s) {suffix}"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [digest, kept(key), kept(name), fence, value, retention_ms])
        return bool(cursor.rowcount == 1)


def _clock_ms(connection: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {CLOCK_US[connection.vendor]}", [])
        return int(cursor.fetchone()[0]) // 1000


@contextmanager
def _only_here(step: InboxStep) -> Iterator[None]:
    """Refuse writes to other databases meanwhile: they would be in another transaction."""

    def refuse(alias: str) -> Callable[..., Any]:
        def wrapper(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
            if str(sql).lstrip("( \n\t").upper().startswith(_WRITES):
                raise StepMisused(
                    f"step {step.name!r} is a transaction on database {step.using!r} and wrote to "
                    f"{alias!r}, which is in none: a crash could leave half. Say using={alias!r}, "
                    f"make it two steps, or say writes_too=({alias!r},) where that is meant"
                )
            return execute(sql, params, many, context)

        return wrapper

    with ExitStack() as stack:
        for alias in connections:
            if alias != step.using and alias not in step.writes_too:
                stack.enter_context(connections[alias].execute_wrapper(refuse(alias)))
        yield
