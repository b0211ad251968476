"""Jobs of several steps for real workers, with a place to fail or to die at every point.

``TEST_PLAN`` is a folder: a file ``<point>`` holds how often to ``fail`` or ``kill`` there, for
example ``kill 1``; ``kill-tree``: the whole worker. Read from the environment beside it: as
``tests/apps/idem.py``.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import task_prerun

from celery_idem import IdempotentTask
from tests.support.effects import Effects

broker = os.environ["TEST_BROKER"]
app = Celery("stepped", broker=broker, backend=os.environ.get("TEST_BACKEND", broker))
app.conf.update(
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    idem=json.loads(os.environ.get("TEST_IDEM", '{"lease_s": 3}')),
    beat_schedule={"nightly": {"task": "stepped.nightly", "schedule": 0.5}},
)


class GatewayDown(Exception):
    """The other side does not answer."""


class CardDeclined(Exception):
    """An outcome, not a fault."""


def point(name: str) -> None:
    """Do what the plan says for this point, as often as it says."""
    plan = Path(os.environ["TEST_PLAN"]) / name
    if not plan.exists():
        return
    what, times = plan.read_text().split()
    count = Effects.from_env()
    if count.count(f"point:{name}") >= int(times):
        return
    count.bump(f"point:{name}")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "kill-tree":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    raise GatewayDown(name)


def effect(name: str, **fields: Any) -> str:
    point(f"before:{name}")
    Effects.from_env().bump(name, **fields)
    point(f"inside:{name}")
    return f"{name} done"


@task_prerun.connect(weak=False)
def _note_delivery(task: Any = None, args: Any = (), **_: Any) -> None:
    if task.name in ("stepped.cools", "stepped.notifies_once"):
        Effects.from_env().bump(f"delivered:{task.name}:{args[0]}")


def once_all_are_there(task: Any, name: str, deliveries: int) -> str:
    """An effect that waits until so many deliveries of it are in work."""
    Effects.from_env().wait_count(f"delivered:{task.name}:{name}", deliveries, deadline_s=60)
    return effect(f"{task.name}:{name}")


def declined(order_id: int) -> None:
    Effects.from_env().bump("declined")
    raise CardDeclined("insufficient funds", 402)


def sent(name: str) -> bool:
    """Whether the system shows the effect as done."""
    return Effects.from_env().count(name) > 0


def other(order_id: int) -> str:
    return "other"


@app.task(base=IdempotentTask, name="stepped.order", bind=True, idem_key="order:{order_id}",
          autoretry_for=(GatewayDown,), max_retries=5, default_retry_delay=0)  # fmt: skip
def order(self: Any, order_id: int) -> list[str]:
    """The article's job (S-S2): the order, the mail, the partner's stock."""
    out = [self.step("order", effect, "order", order=order_id)]
    point("after:order")
    out.append(self.step("email", effect, "email", sent=self.step.key("email")))
    point("after:email")
    out.append(self.step("stock", effect, "stock"))
    point("after:stock")
    return out


@app.task(base=IdempotentTask, name="stepped.once", bind=True, idem_key="once:{order_id}",
          autoretry_for=(GatewayDown,), max_retries=5, default_retry_delay=0)  # fmt: skip
def at_most_once(self: Any, order_id: int) -> str:
    return str(self.step("charge", effect, "charge", at_most_once=True))


@app.task(base=IdempotentTask, name="stepped.sharing", bind=True, idem_key="{name}")
def sharing(self: Any, name: str, order_id: int) -> str:
    return str(self.step("mail", effect, "mail", key=f"email:order_complete:{order_id}"))


@app.task(base=IdempotentTask, name="stepped.lines", bind=True, idem_key="lines:{name}")
def lines(self: Any, name: str, count: int) -> int:
    """C12: a batch with a step for each item."""
    for n in range(count):
        self.step(f"line:{n}", effect, f"{name}:line:{n}")
        point(f"{name}:after-line:{n}")
    return count


def large(size: int) -> str:
    Effects.from_env().bump("large")
    return "x" * size


@app.task(base=IdempotentTask, name="stepped.carries", bind=True, idem_key="carries:{name}")
def carries(self: Any, name: str, size: int) -> int:
    """A step with a result of that many characters."""
    text = self.step("large", large, size)
    point(f"after-large:{name}")
    return len(text)


@app.task(base=IdempotentTask, name="stepped.pay", bind=True, idem_key="pay:{order_id}",
          autoretry_for=(GatewayDown,), max_retries=5, default_retry_delay=0)  # fmt: skip
def pay(self: Any, order_id: int) -> str:
    try:
        self.step("charge", declined, order_id, memoise_errors=(CardDeclined,))
    except CardDeclined as error:
        point("after:declined")
        return f"{error.args[0]} {error.args[1]}"
    return "paid"


@app.task(base=IdempotentTask, name="stepped.cools", bind=True, idem_key="otp:{user}",
          cooldown_s=60)  # fmt: skip
def otp(self: Any, user: str, deliveries: int = 1) -> str:
    return once_all_are_there(self, user, deliveries)


@app.task(base=IdempotentTask, name="stepped.nightly", idem_key="nightly-report",
          cooldown_s=60)  # fmt: skip
def nightly() -> str:
    return effect("stepped.nightly")


@app.task(base=IdempotentTask, name="stepped.notifies_once", bind=True, idem_key="n1:{note}",
          done_if=lambda note, deliveries: sent(f"stepped.notifies_once:{note}"))  # fmt: skip
def notify_once(self: Any, note: str, deliveries: int) -> str:
    return once_all_are_there(self, note, deliveries)


@app.task(base=IdempotentTask, name="stepped.notifies", bind=True, idem_key="n:{note}:{copy}",
          done_if=lambda note, copy: sent(f"sent:{note}"))  # fmt: skip
def notify(self: Any, note: str, copy: int) -> str:
    return effect(f"sent:{note}")
