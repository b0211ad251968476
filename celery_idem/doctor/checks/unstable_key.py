"""A key is made from a clock, a random number, or something of this process.

Such a key is another one at every retry, so the work is done again under each of them, and no
duplicate is ever recognised (S-I2). `hash()` counts: Python salts it in every process. So does
`self.request.retries`, which is what a retry changes; and today's date, which changes at midnight
between two tries.

One date is right: that of a message's own key (`apply_async(…, idem_key=f"daily:{date.today()}")`)
where no task runs the call. It is made once, by the producer, and goes along with the message;
retries and replays keep it. A random number there is still one key for each message.

Read in the source: `idem_key=` of tasks and calls, `idempotent(…)`, `key=` of steps, and the
functions that make them. Of what is read from a stored object (`payment.pk`) the query is not
looked at, nor what it was made with. A task whose own key function reads a clock does not even
start (`IDEM003`).

**Mend it:** make the key of the payload: an order's number, the id of the event. What is random
must be made once, by the producer, and sent along as an argument.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Place, Severity
from celery_idem.doctor.project import Project
from celery_idem.doctor.source.unstable import bodies, unstable_keys


def look(project: Project) -> Iterator[Finding]:
    sources = [project.reader.source_of_task(it.task) for it in project.tasks]
    retried = bodies(project.reader, [it for it in sources if it is not None])
    for module in project.files:
        for key in unstable_keys(project.reader, module, retried):
            line = getattr(key.node, "lineno", 1)
            end = getattr(key.node, "end_lineno", None) or line
            yield Finding(
                f"the key of {key.where} uses {key.what}, which differs at every try",
                remedy='idem_key="order:{order_id}"  # of the arguments alone',
                setting=key.where,
                value=key.what,
                place=Place(str(module.path), line, end),
            )


CHECK = Check("IDEM050", "an unstable key", Severity.ERROR, look, reads_source=True)
