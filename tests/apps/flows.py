"""Members of chains, groups and chords, and processes that die at a moment the test chooses.

Read from the environment: ``TEST_BROKER``, ``TEST_EFFECTS``, ``TEST_IDEM``, ``TEST_TWICE`` ("1":
every message, whoever sends it, is published twice), ``TEST_MOMENTS`` (a folder).

A file ``<moment>:<task id>`` in that folder is a death sentence, used once: the process that gets
there removes it and is killed, ``tree`` in the file: with its whole process group. Moments:

``done``: the result is recorded, nothing was handed on · ``publishing``: a worker is about to
publish a message of that task · ``published``: a worker has published one · ``counting``: the
result is stored, the chord part not yet counted · ``part``: both are stored, not yet noted as
handed on · ``settled``: noted, not yet acked.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, group
from celery import signals as celery_signals
from celery.backends.redis import RedisBackend
from celery.exceptions import Ignore

from celery_idem import IdempotentTask, signals
from tests.support.effects import Effects

broker = os.environ["TEST_BROKER"]
app = Celery("flows", broker=broker, backend=os.environ.get("TEST_BACKEND", broker))
app.conf.update(
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    idem=json.loads(os.environ.get("TEST_IDEM", '{"lease_s": 2}')),
)

_in_worker = False
_count = RedisBackend.on_chord_part_return


def _count_or_die(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    _die_at("counting", request.id)
    return _count(self, request, *args, **kwargs)


@celery_signals.worker_init.connect(weak=False)
def _be_able_to_die_at_the_count(**_: Any) -> None:
    RedisBackend.on_chord_part_return = _count_or_die


@celery_signals.worker_init.connect(weak=False)
@celery_signals.worker_process_init.connect(weak=False)
def _now_in_worker(**_: Any) -> None:
    global _in_worker
    _in_worker = True


def _die_at(moment: str, task_id: Any) -> None:
    if not _in_worker:
        return
    sentence = Path(os.environ.get("TEST_MOMENTS", "/nowhere")) / f"{moment}:{task_id}"
    try:
        how = sentence.read_text()
        sentence.unlink()
    except FileNotFoundError:
        return
    Effects.from_env().bump(f"died:{moment}")
    if how == "tree":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@signals.completed.connect(weak=False)
def _done(task_id: str, **_: Any) -> None:
    _die_at("done", task_id)


@celery_signals.before_task_publish.connect(weak=False)
def _publishing(headers: Any = None, **_: Any) -> None:
    _die_at("publishing", headers["id"])


@celery_signals.after_task_publish.connect(weak=False)
def _published(headers: Any = None, **_: Any) -> None:
    _die_at("published", headers["id"])


class Member(IdempotentTask):
    """``on_success`` is between the stored result and the note that it was handed on."""

    abstract = True

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        _die_at("part", task_id)


@celery_signals.task_postrun.connect(weak=False)
def _settled(task_id: str, **_: Any) -> None:
    _die_at("settled", task_id)


def _until(path: str) -> None:
    gives_up = time.monotonic() + 60
    while not os.path.exists(path) and time.monotonic() < gives_up:
        time.sleep(0.02)


if os.environ.get("TEST_TWICE") == "1":
    _send = app.amqp.send_task_message

    def _send_twice(*args: Any, **kwargs: Any) -> Any:
        _send(*args, **kwargs)
        return _send(*args, **kwargs)

    app.amqp.send_task_message = _send_twice


@app.task(base=Member, name="flows.mark", bind=True)
def mark(self: Any, *before: Any, label: str) -> str:
    """Its effect is its label; its result, too. No key: the task id."""
    Effects.from_env().bump(label, task_id=self.request.id, before=before)
    return label


@app.task(base=Member, name="flows.body", bind=True)
def body(self: Any, parts: list[Any]) -> list[Any]:
    Effects.from_env().bump("body", task_id=self.request.id, parts=parts)
    return sorted(map(str, parts))


@app.task(name="flows.plain_body")
def plain_body(parts: list[Any]) -> list[Any]:
    """Not idempotent: it shows how often it was sent."""
    Effects.from_env().bump("plain_body", parts=parts)
    return sorted(map(str, parts))


@app.task(base=Member, name="flows.pill", bind=True)
def pill(self: Any, *before: Any, label: str, times: int) -> str:
    """Kills its process the first ``times`` times."""
    effects = Effects.from_env()
    effects.bump(f"start:{label}")
    if effects.count(f"start:{label}") <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    effects.bump(label)
    return label


@app.task(base=Member, name="flows.stubborn", bind=True, max_retries=5, default_retry_delay=0)
def stubborn(self: Any, *before: Any, label: str, times: int) -> str:
    """Retries ``times`` times."""
    Effects.from_env().bump(f"start:{label}")
    if self.request.retries < times:
        raise self.retry(countdown=0)
    Effects.from_env().bump(label)
    return label


@app.task(base=Member, name="flows.fails", bind=True)
def fails(self: Any, *before: Any, label: str) -> None:
    Effects.from_env().bump(f"start:{label}")
    raise RuntimeError(f"{label} can't be done")


@app.task(base=Member, name="flows.ignores")
def ignores(label: str) -> None:
    Effects.from_env().bump(label)
    raise Ignore("nobody is to know")


@app.task(base=Member, name="flows.replaces", bind=True)
def replaces(self: Any, label: str, left: int) -> Any:
    """Goes on in another run of itself, under the same task id, until nothing is left."""
    Effects.from_env().bump(f"start:{label}:{left}")
    if left:
        return self.replace(self.app.signature("flows.replaces", (label, left - 1)))
    Effects.from_env().bump(label)
    return label


@app.task(base=Member, name="flows.replaces_slowly", bind=True)
def replaces_slowly(self: Any, gate: str, left: int) -> Any:
    """As ``replaces``, and lingers after its replacement was sent until the gate is open."""
    Effects.from_env().bump(f"start:{left}")
    if not left:
        Effects.from_env().bump("slow")
        return "slow"
    try:
        return self.replace(self.app.signature("flows.replaces_slowly", (gate, left - 1)))
    except Ignore:
        Effects.from_env().bump("replaced")
        _until(gate)
        raise


@app.task(base=Member, name="flows.splits", bind=True)
def splits(self: Any, labels: list[str]) -> Any:
    """Replaced by a chord of as many members."""
    Effects.from_env().bump("start:splits")
    return self.replace(group(mark.s(label=label) for label in labels) | body.s())


@app.task(base=Member, name="flows.trouble", bind=True)
def trouble(self: Any, failed_id: str) -> None:
    """An errback with one argument: Celery sends it as a task."""
    Effects.from_env().bump("errback", failed=failed_id, task_id=self.request.id)
