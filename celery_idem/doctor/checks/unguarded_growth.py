"""A plain task acks late and adds to something: a redelivery adds twice.

Setting a value is the same when done twice; `INCR`, `LPUSH`, `XADD`, `F("points") + 10`, `balance
+= x` and `SET n = n + 1` are not (S-I8). The check finds those of Redis clients, of Django's
cache and ORM, and of SQL texts, unless they stand behind a look at the state or in `with
idempotent(…)`. Counters that only watch (rates, retries, statistics, by their names) are left
out.

**Mend it:** `base=IdempotentTask` with a key; or write the absolute value; or insert a row with a
unique key and count the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project
from celery_idem.doctor.shown import place_of


def look(project: Project) -> Iterator[Finding]:
    for facts in project.plain_tasks:
        if not facts.acks_late:
            continue
        for effect in project.effects_of(facts).every:
            if effect.grows and not effect.guarded:
                yield Finding(
                    f"{effect.shown} counts twice when the message is delivered again",
                    remedy='base=IdempotentTask, idem_key="{…}"  # or write the absolute value',
                    task=facts.name,
                    setting="acks_late",
                    value="True",
                    place=place_of(effect),
                )


CHECK = Check(
    "IDEM053", "an increment that is not guarded", Severity.WARNING, look, reads_source=True
)
