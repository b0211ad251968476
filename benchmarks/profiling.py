"""Where an idempotent task's time goes, by samples of the worker's main process and of a child.

py-spy looks at the running processes from outside; what it sees is counted for the innermost
function of each package.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from benchmarks.bench import Bench, cpu_of
from benchmarks.report import Section, say

SAMPLES_PER_S = 400
#: Rows of each process.
ROWS = 9

_FRAME = re.compile(r"^(?P<function>\S+) \((?P<path>[^:]+):?\d*\)$")
_PACKAGES = ("celery_idem", "celery", "kombu", "billiard", "redis")


def py_spy() -> str | None:
    """The program, if it is installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def measure(messages: int) -> Section:
    """The table: µs a task in the main process and in the children, by function."""
    say("profile")
    section = Section("Where the time goes", ("process: function", "µs a task"))
    program = py_spy()
    if program is None:
        section.notes.append("not measured: py-spy is not installed")
        return section
    with Bench(apps=("guarded",)) as bench:
        bench.warm_up(["guarded.keyed"])
        worker = bench.workers["guarded"]
        bench.send("guarded.keyed", messages)
        pids = {"main": worker.pid, "child": worker.children()[0]}
        watchers = {
            name: _watch(program, pid, bench.folder / f"{name}.raw") for name, pid in pids.items()
        }
        before = cpu_of(worker)
        try:
            bench.drain("guarded.keyed")
        finally:
            used = [now - then for now, then in zip(cpu_of(worker), before, strict=True)]
            for watcher in watchers.values():
                watcher.send_signal(signal.SIGINT)
                watcher.wait(30)
        for name, cpu_s in zip(pids, used, strict=True):
            section.rows += _rows(name, bench.folder / f"{name}.raw", cpu_s / messages * 1e6)
    section.notes.append(
        f"`guarded.keyed`, {messages} tasks: the processor's time of each process, divided by "
        f"{SAMPLES_PER_S} samples a second of what runs Python (waits are not in it). Each sample "
        "counts for its innermost function of celery_idem with the redis-py below it, or for "
        "Celery's part that runs."
    )
    return section


def _watch(program: str, pid: int, out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            program, "record", "--pid", str(pid), "--rate", str(SAMPLES_PER_S), "--format", "raw",
            "--output", str(out), "--duration", "600", "--gil",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _rows(process: str, raw: Path, cpu_us: float) -> list[tuple[str, ...]]:
    counted: Counter[str] = Counter()
    for line in raw.read_text().splitlines() if raw.exists() else ():
        stack, _, count = line.rpartition(" ")
        counted[_place(stack.split(";"))] += int(count)
    us = {name: count / counted.total() * cpu_us for name, count in counted.items()}
    ours = sorted((n for n in us if n.startswith("celery_idem")), key=us.__getitem__, reverse=True)
    others = sorted(us.keys() - set(ours), key=us.__getitem__, reverse=True)
    names = [*ours[:ROWS], *others[:3]]
    total = sum(us[name] for name in ours)
    return [
        (f"{process}: everything", f"{cpu_us:.0f}"),
        (f"{process}: celery_idem", f"{total:.0f}"),
        *((f"{process}: {name}", f"{us[name]:.0f}") for name in names),
    ]


def _place(stack: list[str]) -> str:
    """``celery_idem stores/redis/scripts.py _exchange``, or the name of another package. What is
    called outside of these packages counts for its caller, and so does redis-py below us."""
    below = ""
    for frame in reversed(stack):
        match = _FRAME.match(frame)
        package, rest = _package(match["path"]) if match else ("", "")
        if match and package == "celery_idem":
            return f"celery_idem {rest} {match['function']}"
        if package and package != "redis":
            return package
        below = below or package
    return below or "Python itself"


def _package(path: str) -> tuple[str, str]:
    for package in _PACKAGES:
        _, found, rest = path.rpartition(f"{package}/")
        if found:
            return package, rest
    return "", ""
