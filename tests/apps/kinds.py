"""Every way to write an idempotent task (DESIGN §3). Each has the effect that its key names."""

import ast
import json
import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery, Task, shared_task
from celery.exceptions import Reject
from celery.worker.request import Request
from kombu.serialization import register
from pydantic import BaseModel

from celery_idem import IdempotentTask
from tests.support.effects import Effects
from tests.support.waiting import wait_until

broker = os.environ["TEST_BROKER"]


def _literal(body: bytes | str) -> Any:
    return ast.literal_eval(body if isinstance(body, str) else body.decode())


register("literal", repr, _literal, "application/x-literal", "utf-8")
app = Celery("kinds", broker=broker, backend=broker)
app.set_default()  # for shared_task
app.conf.update(
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    accept_content=["json", "literal"],
    idem=json.loads(os.environ.get("TEST_IDEM", '{"lease_s": 2}')),
)


def note(key: str, **fields: Any) -> None:
    Effects.from_env().bump(key, **fields)


@app.task(base=IdempotentTask, name="kinds.decorated", idem_key="{n}")
def decorated(n: int, more: str = "") -> int:
    note("decorated", n=n)
    return n


@shared_task(base=IdempotentTask, name="kinds.shared", idem_key="{n}")
def shared(n: int, more: str = "") -> int:
    note("shared", n=n)
    return n


class ClassBased(IdempotentTask):
    """Its key function is a method."""

    name = "kinds.class_based"

    def idem_key(self, n: int, more: str = "") -> str:  # type: ignore[override]
        return f"{self.name}-{n}"

    def run(self, n: int, more: str = "") -> int:
        note("class_based", n=n)
        return n


class_based = app.register_task(ClassBased())


class Around(IdempotentTask):
    """A user's base class whose ``__call__`` wraps every delivery, run or not."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        note("around")
        return super().__call__(*args, **kwargs)


@app.task(base=Around, name="kinds.around", idem_key="{n}")
def around(n: int, more: str = "") -> int:
    note("inside around", n=n)
    return n


class Timed(Task):  # type: ignore[type-arg]
    """A user's own base class, known before ours: its ``__call__`` wraps every run."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        note("timed")
        return super().__call__(*args, **kwargs)


class Within(IdempotentTask, Timed):
    abstract = True


@app.task(base=Within, name="kinds.within", bind=True, idem_key="{n}")
def within(self: Any, n: int, more: str = "") -> int:
    note("inside within", n=n, fence=self.fence, task_id=self.request.id)
    return n


@app.task(base=IdempotentTask, name="kinds.bound", bind=True, idem_key="{n}")
def bound(self: Any, n: int, more: str = "") -> int:
    note("bound", n=n, fence=self.fence, name=self.name)
    return n


class Order(BaseModel):
    number: int
    note: str = ""


# Celery 5.5 reads annotations as they are, so this module has them evaluated
@app.task(base=IdempotentTask, name="kinds.typed", pydantic=True, idem_key="{order.number}")
def typed(order: Order) -> Order:
    note("typed", n=order.number, kind=type(order).__name__)
    return Order(number=order.number, note="done")


@app.task(base=IdempotentTask, name="kinds.limited", rate_limit="600/m", idem_key="{n}")
def limited(n: int, more: str = "") -> int:
    note("limited", n=n)
    return n


@app.task(base=IdempotentTask, name="kinds.silent", ignore_result=True, idem_key="{n}")
def silent(n: int, more: str = "") -> int:
    note("silent", n=n)
    return n


@app.task(base=IdempotentTask, name="kinds.untyped", typing=False, idem_key="{n}")
def untyped(n: int, more: str = "") -> int:
    note("untyped", n=n)
    return n


@app.task(base=IdempotentTask, name="kinds.prior", bind=True, priority=3, idem_key="{n}")
def prior(self: Any, n: int, more: str = "") -> int:
    note("prior", n=n, priority=self.request.delivery_info.get("priority"))
    if self.request.retries == 0 and more == "retry":
        raise self.retry(countdown=0)
    if self.request.retries == 0 and more == "retry with a producer":
        with app.producer_or_acquire() as producer:
            raise self.retry(countdown=0, producer=producer)
    return n


@app.task(base=IdempotentTask, name="kinds.asked", bind=True, idem_key="{n}")
def asked(self: Any, n: str, secrets: Any, how: str) -> str:
    """Comes again once, as a retry or as a copy that waits. What it is called with, JSON can't
    write."""
    note("asked", n=n, secrets=sorted(secrets), shown=self.request.argsrepr)
    if len(Effects.from_env().lines("asked")) % 2:
        if how == "retry":
            raise self.retry(countdown=0)
        raise Reject("later", requeue=True)
    return "done"


@app.task(base=IdempotentTask, name="kinds.late", expires=3600, idem_key="{n}")
def late(n: int, more: str = "") -> int:
    note("late", n=n)
    return n


class Unwritable:
    """No serializer takes it."""


@app.task(base=IdempotentTask, name="kinds.unwritable", idem_key="{n}", ignore_result=True)
def unwritable(n: int) -> Any:
    note("unwritable", n=n)
    return Unwritable()


@app.task(base=IdempotentTask, name="kinds.unwritable_kept", idem_key="{n}")
def unwritable_kept(n: int) -> Any:
    note("unwritable_kept", n=n)
    return Unwritable()


@app.task(base=IdempotentTask, name="kinds.recursive", bind=True, idem_key="{n}")
def recursive(self: Any, n: int) -> int:
    """Calls itself as a plain function."""
    note("recursive", n=n)
    return n * self(n - 1) if n > 1 else 1


@app.task(base=IdempotentTask, name="kinds.half", bind=True, idem_key="{n}")
def half(self: Any, n: int, gate: str) -> str:
    """Publishes its own retry, and goes on (``throw=False``). Run 0 and run 1, the retry, each wait
    for their file ``{gate}-{run}`` before they return."""
    run = self.request.retries
    if run == 0:
        self.retry(countdown=0, throw=False)
    note(f"half:{n}:{run}")
    wait_until(Path(f"{gate}-{run}").exists, what=f"the gate of run {run}")
    return ("went on", "retried")[run]


@app.task(base=IdempotentTask, name="kinds.patient", time_limit=1, idem_key="{n}")
def patient(n: int, gate: str) -> int:
    """Waits for the gate; a call may give it more time than it has by itself."""
    note("patient", n=n)
    wait_until(Path(gate).exists, what="the gate")
    return n


class OwnRequest(Request):
    """A user's own request class, which knows nothing of ours."""

    def on_failure(self, *args: Any, **options: Any) -> Any:
        note("own request", task=self.name)
        return super().on_failure(*args, **options)


@app.task(base=IdempotentTask, name="kinds.own_request", Request=OwnRequest, idem_key="{n}")
def own_request(n: int, how: str = "") -> int:
    note("own_request", n=n)
    if how == "fail":
        raise RuntimeError("no")
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return n


@app.task(name="kinds.plain_request", Request="tests.apps.kinds:OwnRequest")
def plain_request(n: int) -> int:
    raise RuntimeError("no")
