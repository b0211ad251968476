"""``python -m model [--small] [--broken] [--write]``: search, and say what was found."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from model.broken import VARIANTS
from model.page import all_found, refuted, replaced, searched
from model.rules import LARGE, SMALL, Scenario
from model.search import search
from model.timeline import summary, timeline

PAGE = Path(__file__).resolve().parents[1] / "docs" / "model.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m model", description=__doc__)
    parser.add_argument("--small", action="store_true", help="the bound of the tests (seconds)")
    parser.add_argument(
        "--broken", action="store_true", help="the deliberately broken variants instead"
    )
    parser.add_argument(
        "--write", action="store_true", help="search everything and write it into docs/model.md"
    )
    options = parser.parse_args()
    if options.write:
        return _write()
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


def _write() -> int:
    page = PAGE.read_text()
    page = replaced(page, "small", searched(all_found(SMALL)))
    page = replaced(page, "large", searched(all_found(LARGE)))
    PAGE.write_text(replaced(page, "broken", refuted()))
    _say(f"{PAGE} says what was found")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
