"""``python -m mutation [SCRIPT ...] [--room ROOM] [--line N] [--list]``: who notices a change?"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_idem.stores.redis.store import RedisStore
from mutation.mutants import ROOMS, Mutant, mutants, scripts
from tests.conformance.history import Shape, record_history
from tests.conformance.linear import explain
from tests.support.servers import RedisServer

#: Seconds that the suite may take over a mutant: one that makes a test wait for ever is noticed.
DEADLINE_S = 900.0
#: Histories of one client that are held against the model before the suite is run.
HISTORIES = 400
SHAPES = (Shape(clients=1, calls=4, before=4), Shape(clients=1, calls=10, before=5))
#: What must notice a mutant of the room, in one process: its scripts are changed in no other.
SUITES = {
    "store": ["tests/conformance", "-k", "redis and not many_histories"],
    "deadletters": [
        "tests/deadletters/test_beside_memory.py",
        "tests/deadletters/test_stores.py",
        "-k",
        "redis or beside",
    ],
    "visibility": ["tests/visibility/test_scripts.py", "tests/visibility/test_ledger.py"],
    "transport": ["tests/transport/lua"],
}
OPTIONS = ["-x", "-q", "--timeout", "60", "-p", "no:cacheprovider"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("scripts", nargs="*", help="names of Lua files; default: all of the room")
    parser.add_argument("--room", choices=ROOMS, default="store", help="default: store")
    parser.add_argument("--line", type=int, help="only mutants of this line")
    parser.add_argument("--list", action="store_true", help="print them, and run nothing")
    options = parser.parse_args()
    wanted = [
        mutant
        for script in options.scripts or scripts(options.room)
        for mutant in mutants(options.room, script)
        if options.line in (None, mutant.line)
    ]
    if options.list:
        _say("\n".join(map(str, wanted)))
        return 0
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder), durable=False) as it:
        return _run(options.room, wanted, it.url())


def _run(room: str, wanted: list[Mutant], url: str) -> int:
    for module, _ in ROOMS.values():  # loaded here, they are there in every process that is forked
        importlib.import_module(module)
    if how := _noticed(room, None, url):
        _say(f"{how} fails without any mutant: nothing can be said")
        return 2
    begun, survivors = time.monotonic(), []
    for n, mutant in enumerate(wanted, 1):
        how = _noticed(room, mutant, url)
        _say(f"{n}/{len(wanted)}  {how or 'SURVIVED':<10}  {mutant}")
        survivors += [] if how else [mutant]
    took_s = time.monotonic() - begun
    _say(f"\n{len(wanted)} mutants, {len(wanted) - len(survivors)} noticed, in {took_s:.0f} s")
    for mutant in survivors:
        _say(f"survived: {mutant}")
    return 1 if survivors else 0


def _noticed(room: str, mutant: Mutant | None, url: str) -> str:
    """What notices it: the model, beside which random histories are played; or a test."""
    with _in_place(mutant):
        if room == "store" and _differs_from_the_model(url):
            return "the model"
        return _first_failure(SUITES[room])


@contextlib.contextmanager
def _in_place(mutant: Mutant | None) -> Iterator[None]:
    """The mutant instead of its script, in this process and those that it forks."""
    if mutant is None:
        yield
        return
    kept: dict[str, Any] = vars(importlib.import_module(ROOMS[mutant.room][0]))
    script = next(
        each
        for each in kept.values()
        if type(each).__name__ == "Script" and each.name == mutant.script
    )
    as_it_is = script.source
    _use(script, mutant.source())
    try:
        yield
    finally:
        _use(script, as_it_is)


def _use(script: Any, source: bytes) -> None:
    if hasattr(script, "use"):
        script.use(source)
    else:  # the transport's are frozen
        object.__setattr__(script, "source", source)
        object.__setattr__(script, "sha", hashlib.sha1(source).hexdigest().encode())


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


def _first_failure(suite: list[str]) -> str:
    """The first test that fails, in a process of its own that has all modules loaded."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(null, stream)
        os._exit(int(pytest.main([*suite, *OPTIONS], plugins=[_Tells(write)])))
    os.close(write)
    gives_up = time.monotonic() + DEADLINE_S
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > gives_up:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
            return "the time"
        time.sleep(0.02)
    with os.fdopen(read) as told:
        failed = told.readline().strip()
    return failed or ("" if os.waitstatus_to_exitcode(ended[1]) == 0 else "the suite")


class _Tells:
    """A plugin that says which tests fail."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._pipe, report.nodeid.rpartition("::")[2].encode() + b"\n")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
