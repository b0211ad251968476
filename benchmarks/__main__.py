"""``python -m benchmarks``: measure, print, and write ``docs/benchmarks.md``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import calls, machine, profiling, round_trips, throughput
from benchmarks.report import Section, say

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"

INTRODUCTION = """\
# Benchmarks

What the promise costs, measured by `make bench` side by side with the same plain tasks and with
other packages, in one run on one machine. Read the ratios; absolute figures don't travel. The
plain task has `acks_late` and `reject_on_worker_lost`, as every task that must not be lost.

What is compared is not the same promise: a plain `acks_late` task is run again after every crash;
celery-once and celery-singleton refuse a second message while the first is queued and look at
nothing when it runs; powertools looks when it runs, and after a crash blocks the key until a
time-out. An idempotent task here is claimed, fenced, its lease is renewed, its result is kept for a
duplicate, and a killed worker's work goes on at once.

"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: always 0 when everything could be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and short rounds; writes no page")
    parser.add_argument("--rounds", type=int, help="of each variant; default 9, quick 3")
    parser.add_argument("--output", type=Path, help=f"default: docs/{PAGE.name}; quick: none")
    options = parser.parse_args(argv)
    rounds = options.rounds or (3 if options.quick else 9)
    messages = 200 if options.quick else 600
    output = options.output or (None if options.quick else PAGE)
    about, begun = machine.describe(), time.monotonic()
    sections = [
        _apart(throughput.measure, "prefork", rounds, messages, True),
        _apart(throughput.measure, "threads", rounds, messages, False),
        _apart(round_trips.measure, messages),
        _apart(calls.measure, rounds, 500 if options.quick else 2000),
        _apart(profiling.measure, 1000 if options.quick else 6000),
    ]
    say("")
    print("\n\n".join([about, *(section.as_text() for section in sections)]))
    print(f"\n{time.monotonic() - begun:.0f} s in all")
    if output is not None:
        output.write_text(page(about, sections), encoding="utf-8")
        print(f"written: {output}")
    return 0


def page(about: str, sections: list[Section]) -> str:
    """The whole page of documentation."""
    parts = [INTRODUCTION, f"**Machine.** {about}\n"]
    return "\n".join([*parts, *(f"{section.as_markdown()}\n" for section in sections)])


def _apart(measure: Callable[..., Section], *given: Any) -> Section:
    """In a process of its own: some packages keep the first server they met for ever."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *given).result()


if __name__ == "__main__":
    sys.exit(main())
