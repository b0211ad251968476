"""A plain task acks late and does something to the world: a redelivery does it twice.

`acks_late` means at least once: a worker that dies after the mail was sent and before the ack
leaves a message that sends it again. The check looks for calls of known clients (mail, payments,
SMS, push, messages, HTTP POST and PATCH) in the task and in the project's functions that it
calls.

It leaves out what is the same when done twice (PUT, DELETE, uploads), POSTs that only ask
(search, token, GraphQL), calls that carry an idempotency key, effects inside `with
idempotent(…)`, and effects behind a look at the state (`if invoice.sent_at: return`): whether
that look can race, nobody can see from here. Whether an HTTP call went well (`if not answer.ok:
return`) is no such look, unless it asks whether the work is there already: a GET or HEAD whose
success ends the body (`if requests.head(url).ok: return`).

**Mend it:** `base=IdempotentTask` with a key; or give the other side a key; or `acks_late=False`,
where losing the job is better than repeating it.
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
            if effect.guarded or effect.grows:
                continue
            yield Finding(
                f"{effect.shown} is done again when the message is delivered again",
                remedy='base=IdempotentTask, idem_key="{…}"  # of the arguments that name the work',
                task=facts.name,
                setting="acks_late",
                value="True",
                place=place_of(effect),
            )
            break  # one is enough to say it of the task


CHECK = Check("IDEM051", "an effect without idempotency", Severity.WARNING, look, reads_source=True)
