"""``python -m model [--small] [--broken]``: search, and say what was found."""

from __future__ import annotations

import argparse
import sys
import time

from model.broken import VARIANTS
from model.rules import LARGE, SMALL, Scenario
from model.search import search
from model.timeline import summary, timeline


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m model", description=__doc__)
    parser.add_argument("--small", action="store_true", help="the bound of the tests (seconds)")
    parser.add_argument(
        "--broken", action="store_true", help="the deliberately broken variants instead"
    )
    options = parser.parse_args()
    return _broken() if options.broken else _as_it_is(SMALL if options.small else LARGE)


def _as_it_is(scenarios: tuple[Scenario, ...]) -> int:
    failed = 0
    for scenario in scenarios:
        started = time.monotonic()
        found = search(scenario)
        _say(f"{summary(found)} ({time.monotonic() - started:.0f} s)")
        if found.broken:
            _say(timeline(found))
            failed = 1
    return failed


def _broken() -> int:
    missed = 0
    for variant in VARIANTS:
        found = search(variant.scenario, variant.rules)
        _say(f"\n{variant.rules.name} ({found.scenario.name})")
        if variant.breaks not in found.broken:
            _say("NOT FOUND: every promise holds")
            missed = 1
            continue
        _say(timeline(found))
    return missed


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
