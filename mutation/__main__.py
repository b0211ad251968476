"""``python -m mutation [SCRIPT ...] [--line N] [--list]``: does a test notice each change?"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_idem.stores.redis import store
from celery_idem.stores.redis.scripts import Script
from celery_idem.stores.redis.store import RedisStore
from mutation.mutants import Mutant, mutants, scripts
from tests.conformance.history import Shape, record_history
from tests.conformance.linear import explain
from tests.support.servers import RedisServer

#: Seconds that the suite may take over a mutant: one that makes a test wait for ever is noticed.
DEADLINE_S = 900.0
#: Histories of one client that are held against the model before the suite is run.
HISTORIES = 400
SHAPES = (Shape(clients=1, calls=4, before=4), Shape(clients=1, calls=10, before=5))
SUITE = [
    "tests/conformance", "-k", "redis and not many_histories", "-x", "-q", "--timeout", "120",
    "-p", "no:cacheprovider",
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("scripts", nargs="*", help=f"of {', '.join(scripts())}; default: all")
    parser.add_argument("--line", type=int, help="only mutants of this line")
    parser.add_argument("--list", action="store_true", help="print them, and run nothing")
    options = parser.parse_args()
    wanted = [
        mutant
        for script in options.scripts or scripts()
        for mutant in mutants(script)
        if options.line in (None, mutant.line)
    ]
    if options.list:
        _say("\n".join(map(str, wanted)))
        return 0
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder), durable=False) as it:
        return _run(wanted, it.url())


def _run(wanted: list[Mutant], url: str) -> int:
    if how := _noticed(None, url):
        _say(f"{how} fails without any mutant: nothing can be said")
        return 2
    begun, survivors = time.monotonic(), []
    for n, mutant in enumerate(wanted, 1):
        how = _noticed(mutant, url)
        _say(f"{n}/{len(wanted)}  {how or 'SURVIVED':<10}  {mutant}")
        survivors += [] if how else [mutant]
    took_s = time.monotonic() - begun
    _say(f"\n{len(wanted)} mutants, {len(wanted) - len(survivors)} noticed, in {took_s:.0f} s")
    for mutant in survivors:
        _say(f"survived: {mutant}")
    return 1 if survivors else 0


def _noticed(mutant: Mutant | None, url: str) -> str:
    """What notices it: the model, beside which random histories are played; or the suite."""
    with _in_place(mutant):
        if _differs_from_the_model(url):
            return "the model"
        return "" if _suite_passes() else "the suite"


@contextlib.contextmanager
def _in_place(mutant: Mutant | None) -> Iterator[None]:
    """The mutant instead of its script, in this process and those that it forks."""
    if mutant is None:
        yield
        return
    [script] = [
        each
        for each in vars(store).values()
        if isinstance(each, Script) and each.name == mutant.script
    ]
    as_it_is = script.source
    script.use(mutant.source())
    try:
        yield
    finally:
        script.use(as_it_is)


def _differs_from_the_model(url: str) -> bool:
    played = RedisStore.from_url(url, prefix=uuid.uuid4().hex, patience_s=0)
    try:
        for seed in range(HISTORIES):
            shape = SHAPES[seed % len(SHAPES)]
            if not explain(record_history([played], f"key-{seed}", seed, shape)).whole:
                return True
    except Exception:  # a script that the server refuses, an answer that nobody understands
        return True
    finally:
        played.close()
    return False


def _suite_passes() -> bool:
    """The conformance suite, in a process of its own that has all modules loaded."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(null, stream)
        os._exit(int(pytest.main(SUITE)))
    gives_up = time.monotonic() + DEADLINE_S
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > gives_up:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(ended[1]) == 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
