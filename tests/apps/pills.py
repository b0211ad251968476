"""Jobs that kill their process under changing task ids (C40), and one that waits between attempts.

Read from the environment: as ``tests/apps/letters.py``, on which it builds; ``TEST_DIES_AT``:
``record`` ends the worker when it would write down what it has popped (C15).
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

from celery import chord

from celery_idem import IdempotentTask
from celery_idem.transport.channel import Channel as StreamsChannel
from celery_idem.visibility.qos import KeptQoS

# A stage loads this module anew, for a server of its own: so must be what it builds on.
sys.modules.pop("tests.apps.letters", None)
letters = importlib.import_module("tests.apps.letters")
_effects, app = letters._effects, letters.app
good, heard, note, pill = letters.good, letters.heard, letters.note, letters.pill

__all__ = ["app", "good", "heard", "note", "pill"]


@app.task(base=IdempotentTask, name="pills.sends", bind=True, idem_key="sends:{name}",
          max_retries=5)  # fmt: skip
def sends(self: Any, name: str, times: int) -> None:
    """Publishes the same work again at each of its retries: other ids, one key."""
    pill.delay(name)
    if self.request.retries + 1 < times:
        raise self.retry(countdown=0)
    _effects().bump(f"sent:{name}")


@app.task(base=IdempotentTask, name="pills.fans_out", bind=True, idem_key="fans:{name}:{number}")
def fans_out(self: Any, name: str, number: int) -> None:
    """Is replaced by a chord, whose members have ids of their own each time."""
    failed = heard.si(name=f"failed:{number}")
    body = heard.si(name=f"body:{number}").on_error(failed)
    raise self.replace(chord([pill.si(name), note.si(name=f"beside:{number}")], body))


@app.task(base=IdempotentTask, name="pills.tree", bind=True, idem_key="tree:{name}")
def tree(self: Any, name: str) -> None:
    """Takes the whole process group with it."""
    _effects().bump(f"start:{name}")
    os.killpg(os.getpgid(0), signal.SIGKILL)


@app.task(base=IdempotentTask, name="pills.keyless", bind=True)
def keyless(self: Any, name: str) -> None:
    """Takes the whole process group with it, and has no key but its id."""
    _effects().bump(f"start:{name}")
    os.killpg(os.getpgid(0), signal.SIGKILL)


@app.task(base=IdempotentTask, name="pills.later", bind=True, idem_key="later:{name}",
          max_retries=3)  # fmt: skip
def later(self: Any, name: str, wait_s: float, gives_up_after: int = 1) -> str:
    """Asks for another attempt after a while, so many times."""
    _effects().bump(f"start:{name}")
    if self.request.retries < gives_up_after:
        raise self.retry(countdown=wait_s)
    _effects().bump(name)
    return name


def _die_instead(owner: type, method: str) -> None:
    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, method, die)


if os.environ.get("TEST_DIES_AT") == "record":
    _die_instead(KeptQoS, "append")
elif os.environ.get("TEST_DIES_AT") == "streams-record":
    _die_instead(StreamsChannel, "_received")


@app.task(base=IdempotentTask, name="pills.charges", bind=True, idem_key="charges:{name}")
def charges(self: Any, name: str, mended: str = "") -> str:
    """One step that must not happen twice, in which the process dies; and one behind it."""

    def once() -> str:
        _effects().bump(f"charge:{name}")
        if not os.path.exists(mended):
            os.kill(os.getpid(), signal.SIGKILL)
        return "receipt 1"

    receipt: str = self.step("charge", once, at_most_once=True)
    _effects().bump(f"mail:{name}", receipt=receipt)
    return receipt
