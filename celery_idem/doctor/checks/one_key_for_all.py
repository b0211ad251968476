"""An idempotent task has several effects outside, and no steps: a retry repeats those that were
done.

The key of a task says whether the *whole* work is done. When the second of two effects fails, the
retry runs both again: the customer gets a second mail because the partner was down (S-S1). An
effect in a loop is many effects: a batch that fails half-way starts from its first element (C12).

Effects that carry an idempotency key of their own are not counted, nor are those behind a look at
the state, and of branches only the longest path. The answer of one effect
(`if answer.status_code != 200: raise`) is no look at the state before the next.

**Mend it:** one step for each effect; in a loop, one for each element:
`self.step(f"mail:{user_id}", send_mail, user_id)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_idem.doctor.finding import Check, Finding, Severity
from celery_idem.doctor.project import Project, TaskFacts
from celery_idem.doctor.shown import place_of
from celery_idem.doctor.source.effects import Effect


def look(project: Project) -> Iterator[Finding]:
    for facts in project.idempotent_tasks:
        path = project.effects_of(facts).longest
        loose = [it for it in path if not it.guarded and not it.grows]
        looped = next((it for it in loose if it.in_loop), None)
        if len(loose) > 1:
            yield _several(facts, loose)
        elif looped is not None:
            yield _in_a_loop(facts, looped)


def _several(facts: TaskFacts, effects: list[Effect]) -> Finding:
    names = ", then ".join(it.shown for it in effects)
    return Finding(
        f"{len(effects)} effects under one key: {names}",
        arithmetic=f"when effect {len(effects)} fails, a retry repeats "
        + (f"the {len(effects) - 1} before it" if len(effects) > 2 else "the one before it"),
        remedy='self.step("mail", send_mail, order_id)  # one for each effect',
        task=facts.name,
        place=place_of(effects[1]),
    )


def _in_a_loop(facts: TaskFacts, effect: Effect) -> Finding:
    return Finding(
        f"{effect.shown} in a loop under one key: a retry starts the loop again",
        remedy='self.step(f"mail:{user_id}", send_mail, user_id)  # one for each element',
        task=facts.name,
        place=place_of(effect),
    )


CHECK = Check("IDEM052", "several effects without steps", Severity.WARNING, look, reads_source=True)
